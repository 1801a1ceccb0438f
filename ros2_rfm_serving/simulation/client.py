"""Interface of a robot and its connection, as simulated servers use it."""

from __future__ import annotations

from typing import Protocol

from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.faults import Delivery, Direction
from ros2_rfm_serving.robot.config import EpisodeReset
from ros2_rfm_serving.types import Reply, RequestId, SessionGrant


class SimulatedConnection(Protocol):
    """Connection between a robot and its servers, simulated (`wire.py`) or recorded (`audit/whatif/network.py`)."""

    def connected(self, direction: Direction, now_s: float) -> bool: ...
    def deliveries(self, direction: Direction, now_s: float, *, reliable: bool = False) -> tuple[Delivery, ...]: ...


class SimulatedClient(Protocol):
    name: str

    @property
    def wire(self) -> SimulatedConnection: ...
    def receive(self, reply: Reply) -> None: ...
    def on_server_status(self, server: str) -> None: ...
    def session_answered(self, component: str, server: str, answer: SessionGrant | RfmError) -> None: ...
    def episode_reset(self, reset: EpisodeReset, ok: bool) -> None: ...
    def request_refetch(self, request: RequestId) -> None: ...
