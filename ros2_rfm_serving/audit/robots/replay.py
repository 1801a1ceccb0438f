"""Replay of a robot's decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.chain import TRANSITION
from ros2_rfm_serving.audit.robots.records import EVENT, TICK, decided, state_record, visible_state
from ros2_rfm_serving.audit.values import ROBOT_EVENTS
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.robot import RobotConfig, RobotCore, events


class RobotReplay:
    """Implementation of `audit.replay.Replayer` for robots."""

    kinds: ClassVar = frozenset({TICK, EVENT, TRANSITION})

    def __init__(self, images: Callable[[str], bytes | None] = lambda digest: None) -> None:
        """Prepare a replay. images: returns their bytes by SHA-256; decisions do not read them."""
        self.core: RobotCore
        self._images = images

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        config, state = (codec.value(snapshot.get(name), self._images) for name in ("config", "state"))
        if not isinstance(config, RobotConfig) or not isinstance(state, dict):
            raise RfmError("it is no snapshot of a robot")
        self.core = RobotCore.from_state(config, state)

    def snapshot(self) -> Mapping[str, Any]:
        return snapshot_of(self.core)

    def feed(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        kind = record["kind"]
        if kind in (TICK, EVENT):
            return self._decide(record["event"], record["t"])
        return {"to": state_record(visible_state(self.core))} if kind == TRANSITION else {}

    def _decide(self, recorded: Any, now_s: float) -> Mapping[str, Any]:
        event = event_of(recorded, self._images)
        try:
            answer = self.core.handle(event, now_s)
        except Exception as error:
            return {"raised": codec.raised(error)}
        return decided(self.core.why, answer) if isinstance(event, events.ControlTick) else {"result": codec.plain(answer)}


def event_of(recorded: Any, images: codec.Blob = lambda digest: None) -> events.Event:
    """Return the event of a record. Raises: `RfmError` when this version has no such event."""
    event: events.Event = codec.event(recorded, ROBOT_EVENTS, "robots", images)
    return event


def snapshot_of(core: RobotCore) -> dict[str, Any]:
    """Return the recorded form of a core: its present configuration, and its state."""
    return {"config": codec.plain(core.config), "state": codec.plain(core.snapshot())}
