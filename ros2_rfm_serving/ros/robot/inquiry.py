"""Which process of a server lives, asked of it by a robot that has no session: then it can vouch for the scheduler that it follows.

What is asked is a session of no component. None is opened; but the refusal is signed, and answers a number that the robot drew.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from rfm_serving import srv

from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.ros.node.doorkeeper import screen
from ros2_rfm_serving.types import SCHEMA_VERSION

if TYPE_CHECKING:
    from ros2_rfm_serving.ros.robot.proofs import Proofs
    from ros2_rfm_serving.security.signing import Asking

PERIOD_S = 2.0
"""Between two questions to the same process."""
MOST_ASKED = 64
"""Processes that are remembered: who was recorded is asked in vain, and keeps nobody from asking the one that lives."""


class Inquiry:
    """Of the robots of one process. Without a certificate it asks nobody anything."""

    def __init__(self, proofs: Proofs, call: Callable[[str, type, Any], Any]) -> None:
        self._proofs, self._call = proofs, call
        self._asked_s: OrderedDict[tuple[str, int], float] = OrderedDict()

    def hear(self, server: str, status: Any, robot: str, now_s: float) -> None:
        """A status of that server's, of now or not. robot: who asks."""
        asked = server, status.process
        if not self._proofs.is_in_doubt(now_s) or now_s - self._asked_s.get(asked, -math.inf) < PERIOD_S:
            return
        request = srv.OpenSession.Request(schema_version=SCHEMA_VERSION, robot=robot)
        try:
            asking = self._proofs.ask(server, status, request)
        except RfmError:  # `/diagnostics` says what is amiss with our own certificate
            return
        if asking is None or (future := self._call(server, srv.OpenSession, request)) is None:
            return
        screen(future, partial(self._is_answer, server, status.process, request, asking))
        self._asked_s[asked] = now_s
        self._asked_s.move_to_end(asked)
        if len(self._asked_s) > MOST_ASKED:
            self._asked_s.popitem(last=False)

    def _is_answer(self, server: str, process: int, request: Any, asking: Asking, answer: Any) -> bool:
        return self._proofs.is_alive(server, process, request, asking, answer)
