"""Decision whether a server that could begin a batch waits for one more request (`batching: wait`).

It waits where one more request in the batch saves more engine time than the engine idles until then, and no waiting request is
harmed. The arrival is predicted from the robot's pace: its usual time from an answer to the next request, and the deviation of it.
"""

from __future__ import annotations

import math

SMOOTHING = 0.3
"""Weight of the newest sample in running means."""


def updated_request_interval(mean_interval_s: float, spread_s: float, newest_s: float) -> tuple[float, float]:
    """Return the running mean of the time from an answer to the robot's next request, and its mean absolute deviation, with the
    newest sample. NaN: nothing was known before."""
    newest_s = newest_s if newest_s > 0.0 else 0.0
    unusual_s = newest_s - mean_interval_s
    if math.isnan(unusual_s):  # first sample
        return newest_s, 0.0
    return mean_interval_s + SMOOTHING * unusual_s, spread_s + SMOOTHING * (abs(unusual_s) - spread_s)


def is_batch_wait_worthwhile(now_s: float, next_s: float, saved_s: float, service_s: float, deadline_s: float) -> bool:
    """Return whether it is worth waiting for the next request.

    saved_s: engine time that it saves. service_s: service time of the batch with one more. deadline_s: time at which the first of
    the waiting robots has no action left to execute, or at which its SLO ends.
    """
    return next_s - now_s < saved_s and next_s + service_s <= deadline_s
