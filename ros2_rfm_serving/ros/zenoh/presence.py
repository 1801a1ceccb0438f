"""Robots on Zenoh: those that subscribe to their replies, by the tokens of rmw_zenoh (Remote-RTC §6.4).

A robot without a token is refused.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.ros.zenoh.format import Endpoint, Kind, endpoint_of
from ros2_rfm_serving.ros.zenoh.passing import TO_ROBOT, address_of
from ros2_rfm_serving.ros.zenoh.tally import check_interface

MAX_ROBOTS = 4096


class Presence:
    """Registry of the robots on Zenoh. `take` is called on one thread, the rest on any other."""

    def __init__(self, names: qos.Names, allowed: Collection[str], refuse: Callable[[BadMessageError], None]) -> None:
        """Create the registry. allowed: robots; empty: all."""
        self._names, self._allowed, self._refuse = names, allowed, refuse
        self._lock = threading.Lock()
        self._tokens: defaultdict[str, set[str]] = defaultdict(set)
        """Tokens by robot."""

    def take(self, token: str, gone: bool) -> None:
        """Process a token that has come or gone."""
        try:
            endpoint = endpoint_of(token)
            if endpoint is not None and (robot := self._robot_of(endpoint)):
                self._note(robot, token, gone)
        except BadMessageError as error:
            self._refuse(error)

    def robots(self) -> set[str]:
        with self._lock:
            return set(self._tokens)

    def check(self, robot: str) -> None:
        """Raise `BadMessageError` unless the robot is present."""
        with self._lock:
            if robot in self._tokens:
                return
        topic = self._names.robot(robot[:100], next(iter(TO_ROBOT)))
        raise BadMessageError("unknown_robot", f"{robot[:100]!r} has no way in: no token says that {topic} is subscribed to")

    def _robot_of(self, endpoint: Endpoint) -> str:
        """Return the robot of an endpoint; empty: none. Raises: `BadMessageError` for another version of the messages."""
        address = endpoint.address
        for leaf, topic in TO_ROBOT.items() if endpoint.kind is Kind.SUBSCRIPTION else ():
            if (robot := self._names.robot_of(address.name, leaf)) and (robot in self._allowed or not self._allowed):
                check_interface(address, address_of(address.domain, address.name, topic.message))
                return robot
        return ""

    def _note(self, robot: str, token: str, gone: bool) -> None:
        with self._lock:
            if gone:
                self._tokens[robot].discard(token)
                if not self._tokens[robot]:
                    del self._tokens[robot]
            elif robot in self._tokens or len(self._tokens) < MAX_ROBOTS:
                self._tokens[robot].add(token)
            else:
                raise BadMessageError("too_many_robots", f"{robot} would be one of more than {MAX_ROBOTS}")
