"""Freshness of what an observer shows, established by challenges to servers.

A signature proves which process has published a message, not when. To an observer that starts later and receives nothing else, a
recording of a whole factory looks like a running one. A server's signed reply to a random number that is drawn here is fresh, and
it names the scheduler whose schedule that server follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

from rclpy.node import Node
from rclpy.task import Future
from rfm_serving import srv

from ros2_rfm_serving.monitoring.board import Board, Proof
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.predecessor import ask_in_force
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.security.proof import Verifies
from ros2_rfm_serving.types.schedule_follower import REPEAT_PERIOD_S, SILENT_AFTER_S

LOOK_PERIOD_S, PERIOD_S = 0.25, 1.0
"""Period of polling, and the minimum time between two requests to the same server."""
MOST_ASKED = 4
"""Maximum number of servers that are asked at a time; any one of them knows the scheduler."""
SUCCEEDED_AFTER_S = 1.5 * REPEAT_PERIOD_S
"""Time without a schedule from one scheduler after which another one is shown instead."""


class Dated:
    """Freshness check of one observer. Without a certificate it sends no request, because nothing can be verified then."""

    def __init__(self, node: Node, names: qos.Names, board: Board, verifier: Verifies | None) -> None:
        self._node, self._names, self._board, self._verifier = node, names, board, verifier
        self.scheduler = 0
        """Identity of the scheduler that a server has last reported to follow; 0: no server has reported one yet."""
        self._clients: dict[str, Any] = {}
        self._asked: dict[str, Future] = {}
        self._asked_s: dict[str, float] = {}
        if verifier is not None:
            every(node, LOOK_PERIOD_S, self._look)

    def _look(self) -> None:
        board = self._board
        board.proof = Proof.CHECKED if board.scheduler and board.scheduler == self.scheduler else Proof.UNDATED
        if board.proof is Proof.CHECKED:
            return
        now_s = clock()
        for server in self._due(now_s):
            self._asked_s[server] = now_s
            self._give_up(server)
            if (client := self._client(server)).service_is_ready():
                self._asked[server] = future = ask_in_force(server, client, self._verifier, self._node.get_logger())
                future.add_done_callback(partial(self._hear, server))

    def _due(self, now_s: float) -> Iterable[str]:
        """Return the servers to ask now: of those that are known, the ones that were asked longest ago."""
        since_s = {server: self._asked_s.get(server, -math.inf) for server in self._board.servers}
        due = [server for server, at_s in since_s.items() if now_s - at_s >= PERIOD_S]
        busy = sum(now_s - at_s < PERIOD_S for at_s in since_s.values())
        return sorted(due, key=since_s.__getitem__)[: max(0, MOST_ASKED - busy)]

    def _client(self, server: str) -> Any:
        if server not in self._clients:
            name = self._names.server(server, "get_schedule")
            self._clients[server] = self._node.create_client(srv.GetSchedule, name, qos_profile=qos.CONTROL)
        return self._clients[server]

    def _give_up(self, server: str) -> None:
        if future := self._asked.pop(server, None):
            future.cancel()

    def _hear(self, server: str, answered: Future) -> None:
        if self._asked.get(server) is answered:
            del self._asked[server]
        if not answered.cancelled() and answered.exception() is None and (told := answered.result().schedule).epoch:
            self.scheduler = told.scheduler


class ShownScheduler:
    """Choice of the scheduler whose schedule is shown. The scheduler that a server freshly reports to follow has precedence.
    Otherwise the first one received is shown until it falls silent."""

    def __init__(self, board: Board, dated: Dated) -> None:
        self._board, self._dated = board, dated
        self._rival_s = -math.inf
        """Time at which another scheduler than the board's was last received."""

    def is_rivals(self, scheduler: int, now_s: float) -> bool:
        """Return whether this scheduler's schedule is not shown: alternating figures of two schedulers would help no reader."""
        board = self._board
        is_another = board.scheduler not in (0, scheduler) and scheduler != self._dated.scheduler
        if is_another and now_s - board.schedule_seen_s <= SUCCEEDED_AFTER_S:
            self._rival_s = now_s
            return True
        if board.scheduler == scheduler and now_s - self._rival_s <= SILENT_AFTER_S:
            board.disputed_s = now_s
        return False
