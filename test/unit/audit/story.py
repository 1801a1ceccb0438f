"""Audit logs for tests, as writers write them: a robot that executes chunks, with what it was told, and who served it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.chain import FORMAT, Chain, Page
from ros2_rfm_serving.robot import Sensors
from ros2_rfm_serving.types import ActionChunk, EncodedImage, RequestId, ServingStats

EPOCH_S = 1_700_000_000.0
"""ROS time at 0 s of every writer's clock here."""
NAMES = ("x", "y")


@dataclass
class Log:
    """One writer, at its own pace."""

    writer: str
    role: str
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of its first record."""
    run: int = 7
    ahead_s: float = 0.0
    """Of its monotonic clock."""
    begins_s: float = 0.0
    chain: Chain = field(init=False)

    def __post_init__(self) -> None:
        self.chain = Chain(self.writer, self.run)
        begun = {"role": self.role, "format": FORMAT, "stamp": EPOCH_S + self.begins_s, "versions": {}}
        self.note("begin", self.begins_s, **begun, **self.more, after=None)

    def note(self, kind: str, t_s: float, **body: Any) -> None:
        self.chain.note(kind, t_s + self.ahead_s, body)

    def event(self, t_s: float, name: str, result: Any = None, **values: Any) -> None:
        """An event of a robot."""
        self.note("event", t_s, event={"~": name, **codec.plain(values)}, result=result)

    def page(self) -> Page:
        page = self.chain.page()
        assert page is not None
        return page


def picture(camera: str, data: bytes = b"j" * 100) -> EncodedImage:
    return EncodedImage(camera=camera, format="jpeg", data=data)


def robot(name: str = "push_1", rate_hz: float = 10.0, names: tuple[str, ...] = NAMES, **more: Any) -> Log:
    """Return the log of a robot that has just begun. more: other keys of its configuration, as recordings have them."""
    config = {"~": "RobotConfig", "action_names": list(names), "control_rate_hz": rate_hz} | codec.plain(more)
    return Log(f"robot/{name}", "robot", {"config": config})


def readings(t_s: float, state: float = 0.0, images: tuple[EncodedImage, ...] | None = None) -> dict[str, Any]:
    read = Sensors(np.full(3, state, np.float32), t_s - 0.01, images or (), t_s - 0.05, 0.04)
    found: dict[str, Any] = codec.plain(read)
    return found


def request(sequence: int, episode: int = 1, component: str = "system1", **more: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"server": "server_1", "component": component, "session_epoch": 3, "episode": episode}
    asked = {
        "sequence": sequence,
        "instruction": "push it",
        "inference_delay_steps": 2,
        "prefix_steps": 4,
        "prefix_digest": "p" * 64,
    }
    return told | asked | {"report": None, "episode_start": sequence == 1} | more


def row(index: int, sequence: int, episode: int = 1, **more: Any) -> dict[str, Any]:
    chunk = {"session_epoch": 3, "episode": episode, "sequence": sequence, "server": "server_1", "model_hash": "abc123"}
    return {"source": "step", "step": index, "chunk": chunk, "staleness_s": 0.2} | more


def control_tick(read: dict[str, Any] | None) -> dict[str, Any]:
    """The event of a control period, with its readings as they are recorded."""
    return {"~": "ControlTick", "sensors": read, "may_act": True}


READ: dict[str, Any] = {}
"""Readings as they are at that time."""


def tick(log: Log, t_s: float, command: Any, why: dict[str, Any], sensors: dict[str, Any] | None = READ, **more: Any) -> None:
    event = control_tick(readings(t_s + log.ahead_s, t_s) if sensors is READ else sensors)
    plain = None if command is None else codec.plain(np.asarray(command, np.float32))
    log.note(
        "tick",
        t_s,
        **({"event": event, "command": plain, "why": why, "requests": [], "session_requests": [], "episode_resets": []} | more),
    )


def chunk(sequence: int, robot_name: str = "push_1", episode: int = 1) -> ActionChunk:
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    return ActionChunk(
        id=RequestId(robot=robot_name, component="system1", session_epoch=3, episode=episode, sequence=sequence),
        stamp_ns=5,
        server="server_1",
        model_hash="abc123",
        action_names=NAMES,
        chunk_model=rows,
        chunk_robot=rows,
        confidence=np.linspace(1.0, 0.5, 6, dtype=np.float32),
        execution_horizon=4,
        inference_delay_steps=2,
        served=ServingStats(queue_wait_s=0.012, inference_s=0.06, batch_size=2, superseded=0, server_load=0.4),
    )


def answer(log: Log, t_s: float, sequence: int, **more: Any) -> None:
    name = log.writer.removeprefix("robot/")
    log.event(t_s, "ReplyReceived", result=True, reply=chunk(sequence, name, **more))


def transition(log: Log, t_s: float, to: str, reason: str = "", phase: str = "EXECUTING", paused: bool = False) -> None:
    before = {"state": "STREAMING", "phase": "EXECUTING", "paused": False}
    log.note("transition", t_s, **{"from": before, "to": {"state": to, "phase": phase, "paused": paused}, "reason": reason})
