"""Words of a scheduler, and of a server, signed with a certificate of the test's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rclpy.node import Node

from ros2_rfm_serving.ros.node.said import Speaker
from ros2_rfm_serving.ros.node.scheduled import ScheduleSpeaker
from ros2_rfm_serving.security.signing import Prover


class Herald:
    """Says one schedule, as often as it is asked to."""

    def __init__(self, enclave: Path, node: Node, schedule: Any, hears: Iterable[int] = ()) -> None:
        self._speaker, self._node, self.schedule = ScheduleSpeaker(Prover(enclave)), node, schedule
        self.put(schedule, hears)

    def put(self, schedule: Any, hears: Iterable[int] = ()) -> None:
        self.schedule = schedule
        schedule.hears = list(hears)
        self._speaker.put(schedule)

    def word(self) -> bytes:
        return self._speaker.word(self._node.get_clock().now().to_msg())


def speaker(enclave: Path) -> Speaker:
    """Of statuses."""
    made = Speaker()
    made._prover = Prover(enclave)
    return made
