"""A robot decides once more."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.robots.recorded import SILENT
from ros2_rfm_serving.audit.robots.told import decided, raised, sensors_of, told_state
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.robot import RobotBrain

INPUTS: dict[str, bool] = {
    name: "now_s" in inspect.signature(getattr(RobotBrain, name)).parameters
    for name in (
        *("follow", "server_seen", "server_loads", "server_alive", "server_lost", "session_opened", "session_refused"),
        *("ask_again", "episode_reset", "reply", "start", "finish", "cancel", "reset_begins", "reset_done"),
        *("stop_command", "stop_trajectory", "pause", "resume", "abort"),
    )
}
"""Calls of a brain, and whether they are told the time."""


class RobotReplay:
    """See `audit.replay.Replayer`."""

    def __init__(self, images: Callable[[str], bytes | None] = lambda digest: None) -> None:
        """images: their bytes by SHA-256. No decision looks at them."""
        self.brain: RobotBrain
        self._images = images

    def restore(self, brain: Any) -> None:
        restored = codec.value(brain, self._images)
        if not isinstance(restored, RobotBrain):
            raise RfmError("it is no robot's brain")
        self.brain = restored

    def whole(self) -> Any:
        return codec.whole(self.brain)

    def rewritten(self, brain: Any) -> Any:
        return codec.whole(codec.value(brain, self._images))

    def feed(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        kind = record["kind"]
        if kind == "tick":
            return self._tick(record)
        if kind == "call":
            return self._call(record)
        return {"to": told_state(self.brain)} if kind == "transition" else {}

    def _tick(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        sensors, may_act = sensors_of(record["sensors"], self._images), bool(record["may_act"])
        try:
            tick = self.brain.tick(sensors, record["t"], may_act=may_act)
        except Exception as error:
            return {"raised": raised(error)}
        return decided(self.brain, tick)

    def _call(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        do = record["do"]
        given = {name: codec.value(value, self._images) for name, value in record["args"].items()}
        try:
            result = self._told(do, given, record["t"])
        except RfmError:
            raise
        except Exception as error:
            return {"raised": raised(error)}
        return {"result": None if do in SILENT else codec.plain(result)}

    def _told(self, do: str, given: dict[str, Any], now_s: float) -> Any:
        if do == "count":
            self.brain.refused.update(given)
            return None
        if do == "reconfigure":
            self.brain.prepared(given["config"])()
            return None
        if do not in INPUTS:
            raise RfmError(f"{do!r} is nothing that this version's robots are told")
        more = {"now_s": now_s} if INPUTS[do] else {}
        return getattr(self.brain, do)(**given, **more)
