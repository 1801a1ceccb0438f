"""Rotation of subscriptions to unregistered robots: a subscription to a status takes 0.1 MB, and any process may publish thousands.

Robots that a former scheduler admitted are unregistered too, until their status is received. So all are subscribed to in turn, a
few at a time.
"""

from __future__ import annotations

from collections.abc import Set

LEAST_PLACES = 128
TURNS = 4
"""Maximum subscriptions rotated per poll (2 Hz) while others are queued; limits discovery traffic."""
LEAST_LOOKS = 10
"""Least duration of a subscription in polls: statuses arrive twice a second."""
REST_LOOKS = 40
"""Polls between two rotations for robots that had a subscription before: each costs discovery time, and some memory for good."""


class UnregisteredRobots:
    """Robots on the ROS graph that are neither declared nor registered."""

    def __init__(self) -> None:
        self._looks = 0
        self._heard: dict[str, int] = {}
        """Subscribed robot -> poll of its subscription, the oldest first."""
        self._waiting: dict[str, bool] = {}
        """Queued robot -> whether it had a subscription; those without come first."""

    @property
    def num_heard(self) -> int:
        return len(self._heard)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def look(self, strangers: Set[str], fleet: int) -> Set[str]:
        """Return the robots to subscribe to until the next poll. fleet: number of declared or admitted robots; there are as many
        places, and at least `LEAST_PLACES`."""
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
