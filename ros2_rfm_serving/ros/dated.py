"""Whether what is shown is of now, asked of servers by who looks.

A signature says who has said something, and not when: to a looker that begins after it and hears nobody else, a recording of a
whole factory is a factory. A server's answer to a number that is drawn here is of now, and says which schedule is in force there.
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
from ros2_rfm_serving.types.following import REPEAT_PERIOD_S, SILENT_AFTER_S

LOOK_PERIOD_S, PERIOD_S = 0.25, 1.0
"""Of looking whether there is something to ask; between two questions to the same server."""
MOST_ASKED = 4
"""At a time: any one of them knows."""
SUCCEEDED_AFTER_S = 1.5 * REPEAT_PERIOD_S
"""Without a word of a scheduler, another one's counts."""


class Dated:
    """Of one looker. Without a certificate it asks nobody: nothing is proven then."""

    def __init__(self, node: Node, names: qos.Names, board: Board, verifier: Verifies | None) -> None:
        self._node, self._names, self._board, self._verifier = node, names, board, verifier
        self.scheduler = 0
        """Whose schedule a server has said to have in force, last; 0: none has said so."""
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
        """Of those who are heard, or are said to be, whoever was asked longest ago."""
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
    """Whose schedule is: whom a server follows now before all others, else whoever is heard first, until there is no word of it."""

    def __init__(self, board: Board, dated: Dated) -> None:
        self._board, self._dated = board, dated
        self._rival_s = -math.inf
        """When another scheduler than the board's was heard."""

    def is_rivals(self, scheduler: int, now_s: float) -> bool:
        """This one's is not shown: figures that alternate would help nobody."""
        board = self._board
        is_another = board.scheduler not in (0, scheduler) and scheduler != self._dated.scheduler
        if is_another and now_s - board.schedule_seen_s <= SUCCEEDED_AFTER_S:
            self._rival_s = now_s
            return True
        if board.scheduler == scheduler and now_s - self._rival_s <= SILENT_AFTER_S:
            board.disputed_s = now_s
        return False
