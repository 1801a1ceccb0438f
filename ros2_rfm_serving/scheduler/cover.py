"""Who can take a server's place without a look at anything: for plans, and for what runs."""

from __future__ import annotations

from typing import Protocol

from ros2_rfm_serving.scheduler.prediction.curves import Config


class Server(Protocol):
    @property
    def config(self) -> Config: ...
    @property
    def is_idle(self) -> bool: ...


def stands_in(standby: Server, server: Server) -> bool:
    """Idle, and set up alike: whatever robots keep where they are, which the curves may know nothing of, they keep there."""
    return standby.is_idle and standby.config == server.config
