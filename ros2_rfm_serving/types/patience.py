"""Whether a server that could begin a batch waits for one more request (`batching: wait`), and when it expects that.

It waits where one more in the batch saves more of the engine's time than it idles until then, and hurts nobody who is there. When
a robot asks next it knows by its pace: what it usually takes from an answer to the next request, and by how much that scatters.
"""

from __future__ import annotations

import math

SMOOTHING = 0.3
"""Weight of the newest sample in running means."""


def learned(thought_s: float, spread_s: float, newest_s: float) -> tuple[float, float]:
    """(from an answer to its robot's next request, how far that is off on average), with the newest; NaN: nothing was known."""
    newest_s = newest_s if newest_s > 0.0 else 0.0
    unusual_s = newest_s - thought_s
    if math.isnan(unusual_s):  # it is the first
        return newest_s, 0.0
    return thought_s + SMOOTHING * unusual_s, spread_s + SMOOTHING * (abs(unusual_s) - spread_s)


def pays(now_s: float, next_s: float, saved_s: float, service_s: float, deadline_s: float) -> bool:
    """Waiting for the next request. saved_s: of the engine's time. service_s: of the batch with one more. deadline_s: when the
    first of those who wait has nothing left to execute, or its SLO is over."""
    return next_s - now_s < saved_s and next_s + service_s <= deadline_s
