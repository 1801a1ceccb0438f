"""Discovery of robots and servers on the graph, for a board that does not know its factory."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rclpy.node import Node

from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.observer_node import ObserverNode
from ros2_rfm_serving.ros.wire import qos

LOOK_PERIOD_S = 1.0
MAX_SHARE = 0.05
"""Share of the executor's computing time that discovery may take: a topic costs some 30 us, and a large factory has tens of
thousands.

It is CPU time: on a busy machine a search takes longer but costs no more, and new robots have to be found all the same."""
FORGET_AFTER_S = 60.0
"""Time after which a silent robot or server is removed, if its topics have gone and no schedule contains it.

For servers that means no schedule of this descriptor, for robots the newest schedule: the scheduler plans without a lost server,
which is still missing."""
MAX_WATCHED = 4096
"""Maximum number of robots, and of servers: anybody with write access to the graph chooses their names."""
NAME = re.compile(r"[A-Za-z]\w{0,99}", re.ASCII)
ROBOT_STATUS, SERVER_STATUS = "rfm_serving/msg/RobotStatus", "rfm_serving/msg/ServerStatus"


class There(NamedTuple):
    robots: frozenset[str]
    servers: frozenset[str]


def there(topics: Iterable[tuple[str, list[str]]], names: qos.Names) -> There:
    """Return the robots and servers that have topics in this factory's namespace.
    topics: (name, types), as the graph lists them."""
    kinds = {ROBOT_STATUS: names.robot("*", "rfm/status"), SERVER_STATUS: names.server("*", "status")}
    found: dict[str, set[str]] = {kind: set() for kind in kinds}
    for topic, types in topics:
        for kind in kinds.keys() & set(types):
            before, _, after = kinds[kind].partition("*")
            if match := re.fullmatch(f"{before}({NAME.pattern}){after}", topic, re.ASCII):
                found[kind].add(match.group(1))
    return There(frozenset(found[ROBOT_STATUS]), frozenset(found[SERVER_STATUS]))


def look(node: Node, names: qos.Names) -> There:
    """Return the robots and servers with a publisher: a topic with subscribers alone is on the graph, too."""
    found = there(node.get_topic_names_and_types(), names)
    return There(
        frozenset(robot for robot in found.robots if node.count_publishers(names.robot(robot, "rfm/status"))),
        frozenset(server for server in found.servers if node.count_publishers(names.server(server, "status"))),
    )


def _connected(names: frozenset[str], ears: Mapping[str, Any]) -> Iterator[str]:
    """Return the names with a publisher in this partition."""
    return (name for name in names & ears.keys() if ears[name] is None or ears[name].get_publisher_count())


def usable(names: Iterable[str]) -> frozenset[str]:
    """Return the valid names: any process may publish a schedule."""
    return frozenset(name for name in names if NAME.fullmatch(name))


class DiscoveringNode(ObserverNode):
    """Node that watches robots and servers as they come, those of the schedule even before, and forgets those that have gone for
    good.

    The graph also lists those of other DDS partitions: the board has only those that were received or are expected. Subscriptions
    are never destroyed: they cost nothing, and destroying one may crash the executor (ros2/rclpy#1644)."""

    def __init__(self, board: Board, fleet_namespace: str = "", enclave: Path | None = None) -> None:
        super().__init__(board, fleet_namespace, enclave)
        self._ears: tuple[dict[str, Any], dict[str, Any]] = dict.fromkeys(board.robots), dict.fromkeys(board.servers)
        """Watched robots and servers -> the subscription to their status; None: watched since before the first search."""
        self._there_s: dict[str, float] = {}
        """Name -> time at which it was last present or expected."""
        self._look_s = -math.inf
        """Time of the next search."""
        self._declared: frozenset[str] = frozenset()
        """Servers of all schedules that were received from schedulers of the newest one's descriptor."""
        every(self, LOOK_PERIOD_S, self._look_in_time)
        self.look()

    def _look_in_time(self) -> None:
        if clock() >= self._look_s:
            begin_s = time.thread_time()
            self.look()
            self._look_s = clock() + (time.thread_time() - begin_s) / MAX_SHARE

    def _on_schedule(self, message: Any) -> None:
        """Process a schedule; its robots and servers are watched from now on, whenever the graph is searched next."""
        board = self._board
        before, descriptor = (board.planned_robots, board.planned_servers), board.descriptor
        super()._on_schedule(message)
        known = self._declared if board.descriptor == descriptor else frozenset()
        self._declared = known | (usable(board.planned_servers) & self._ears[1].keys())
        if (board.planned_robots, board.planned_servers) != before:
            self._add(usable(board.planned_robots), usable(board.planned_servers))

    def look(self) -> None:
        board, found = self._board, look(self, self._names)
        heard = [frozenset(_connected(names, ears)) for names, ears in zip(found, self._ears, strict=True)]
        self._add(heard[0] | usable(board.planned_robots), heard[1] | usable(board.planned_servers))
        self._watch(found)
        self._forget(heard[0] | heard[1] | usable(board.planned_robots | board.planned_servers) | self._declared)

    def _on_robot(self, message: Any) -> None:
        if (name := message.header.frame_id) in self._ears[0] and name not in self._board.robots:
            self._board.add(robots=[name])
        super()._on_robot(message)

    def _on_server(self, message: Any) -> None:
        if (name := message.header.frame_id) in self._ears[1] and name not in self._board.servers:
            self._board.add(servers=[name])
        super()._on_server(message)

    def _add(self, robots: frozenset[str], servers: frozenset[str]) -> None:
        self._watch(There(robots, servers))
        self._board.add(robots=sorted(robots & self._ears[0].keys()), servers=sorted(servers & self._ears[1].keys()))

    def _watch(self, found: There) -> None:
        for names, ears, watch in zip(found, self._ears, (self.watch_robot, self.watch_server), strict=True):
            for name in sorted(names - ears.keys())[: MAX_WATCHED - len(ears)]:
                ears[name] = watch(name)

    def _forget(self, there: frozenset[str]) -> None:
        now_s = clock()
        self._there_s.update(dict.fromkeys(there, now_s))
        for name in {*self._board.robots, *self._board.servers} - there:
            if now_s - self._there_s.setdefault(name, now_s) > FORGET_AFTER_S:
                self._board.forget(name)
