"""Liveness queries of a robot without a session: which process of a server is alive, so that it can vouch for its scheduler.

The query requests a session of no component. The server opens none, but it signs the refusal, which answers the robot's random
number.
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
"""Minimum time between two queries to the same process."""
MOST_ASKED = 64
"""Maximum number of remembered processes; queries to a recorded process fail, and must not prevent a query to the live one."""


class Inquiry:
    """Liveness queries for the robots of one process. Without a certificate it sends none."""

    def __init__(self, proofs: Proofs, call: Callable[[str, type, Any], Any]) -> None:
        self._proofs, self._call = proofs, call
        self._asked_s: OrderedDict[tuple[str, int], float] = OrderedDict()

    def hear(self, server: str, status: Any, robot: str, now_s: float) -> None:
        """Query a server about its status, which may be old, when a query is due. robot: name of the querying robot."""
        asked = server, status.process
        if not self._proofs.is_in_doubt(now_s) or now_s - self._asked_s.get(asked, -math.inf) < PERIOD_S:
            return
        request = srv.OpenSession.Request(schema_version=SCHEMA_VERSION, robot=robot)
        try:
            asking = self._proofs.ask(server, status, request)
        except RfmError:  # `/diagnostics` reports problems of the own certificate
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
