"""Which of the robots that nobody knows are heard: a subscription to a status takes 0.1 MB, and anybody may publish thousands.

Whom a former scheduler admitted is a stranger too, until its status says so. So all are heard, a few at a time, by turns.
"""

from __future__ import annotations

from collections.abc import Set

LEAST_PLACES = 128
TURNS = 4
"""That end at a look, twice a second, at the most where others wait: no storm of discovery."""
LEAST_LOOKS = 10
"""Of a turn: statuses come twice a second."""
REST_LOOKS = 40
"""Between two turns that end for somebody who has had one: each takes discovery's time, and some memory for good."""


class Strangers:
    """Robots on the graph, neither declared nor known to the roster."""

    def __init__(self) -> None:
        self._looks = 0
        self._heard: dict[str, int] = {}
        """Since which look, the first ones first."""
        self._waiting: dict[str, bool] = {}
        """And has had a turn; those who had none come first."""

    @property
    def num_heard(self) -> int:
        return len(self._heard)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def look(self, strangers: Set[str], fleet: int) -> Set[str]:
        """Who of them is heard until the next look. fleet: robots that are declared or admitted; there are as many places, and
        `LEAST_PLACES` at least."""
        self._looks += 1
        heard = [name for name in self._heard if name in strangers]
        new = sorted(strangers - self._heard.keys() - self._waiting.keys())
        known = {name: had for name, had in self._waiting.items() if name in strangers}
        waiting = dict(sorted((known | dict.fromkeys(new, False)).items(), key=lambda item: item[1]))
        free = max(LEAST_PLACES, fleet) - len(heard)
        ripe = sum(self._looks - self._heard[name] >= LEAST_LOOKS for name in heard)
        first = sum(not had for had in waiting.values())
        turns = min(TURNS, first) or int(self._looks % REST_LOOKS == 0)
        over = max(min(turns - free, len(waiting) - free, ripe), -free, 0)
        queue, free = waiting | dict.fromkeys(heard[:over], True), free + over
        since = {name: self._heard[name] for name in heard[over:]}
        self._heard = since | dict.fromkeys(list(queue)[:free], self._looks)
        self._waiting = {name: had for name, had in queue.items() if name not in self._heard}
        return self._heard.keys()
