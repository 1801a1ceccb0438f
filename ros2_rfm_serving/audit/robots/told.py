"""What a robot was given and what it did, in the words of its records: by the recording and by the replay alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.robot import RobotBrain, Sensors, Tick
from ros2_rfm_serving.robot.why import Origin, Why
from ros2_rfm_serving.types import NO_ROWS, ObservationRequest, RequestId, TaskPhase


def told_tick(brain: RobotBrain, sensors: Sensors | None, may_act: bool, tick: Tick) -> dict[str, Any]:
    """Of the tick that has just been made. Images stand where a request took them along: nothing else looks at them."""
    return {"sensors": _sensors(sensors, bool(tick.requests)), "may_act": may_act, **decided(brain, tick)}


def decided(brain: RobotBrain, tick: Tick) -> dict[str, Any]:
    """What `told_tick` tells beside what the brain was given."""
    return {
        "command": codec.plain(tick.command),
        "why": told_why(brain.why),
        "requests": [_request(server, request) for server, request in tick.requests],
        "opens": codec.plain(tick.opens) if tick.opens else [],
        "resets": codec.plain(tick.resets) if tick.resets else [],
        **({} if tick.trajectory is None else {"trajectory": codec.plain(tick.trajectory)}),
    }


def failed_tick(sensors: Sensors | None, may_act: bool, error: BaseException) -> dict[str, Any]:
    return {"sensors": _sensors(sensors, True), "may_act": may_act, "raised": raised(error)}


def told_call(do: str, args: Mapping[str, Any], result: object) -> dict[str, Any]:
    """args: by name."""
    return {"do": do, "args": {name: codec.plain(value) for name, value in args.items()}, "result": codec.plain(result)}


def failed_call(do: str, args: Mapping[str, Any], error: BaseException) -> dict[str, Any]:
    return {"do": do, "args": {name: codec.plain(value) for name, value in args.items()}, "raised": raised(error)}


def raised(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:400]


def told_state(brain: RobotBrain) -> dict[str, Any]:
    phase = brain.task.phase if brain.task is not None else TaskPhase.IDLE
    return {"state": brain.state.name, "phase": phase.name, "paused": brain.paused}


def told_why(why: Why) -> dict[str, Any]:
    told: dict[str, Any] = {"by": why.by.value}
    if why.origin is not None:
        told |= {"row": why.row, "chunk": _origin(why.origin)}
    if not math.isnan(why.staleness_s):
        told["staleness_s"] = why.staleness_s
    if not math.isnan(why.oldest_staleness_s):
        told["oldest_staleness_s"] = why.oldest_staleness_s
    if why.limited_from is not None:
        told["limited_from"] = codec.plain(why.limited_from)
    if why.rung is not None:
        told["rung"] = why.rung.value
    if why.reason:
        told["reason"] = why.reason
    return told


def sensors_of(found: Mapping[str, Any] | None, images: Any) -> Sensors | None:
    """What `_sensors` was given. images: their bytes by SHA-256."""
    if found is None:
        return None
    read = {name: codec.value(value, images) for name, value in found.items()}
    return Sensors(**{"images": (), **read})


def _sensors(sensors: Sensors | None, with_images: bool) -> dict[str, Any] | None:
    if sensors is None:
        return None
    told = {
        "state": codec.plain(sensors.state),
        "state_s": _seconds(sensors.state_s),
        "images_s": _seconds(sensors.images_s),
        "skew_s": _seconds(sensors.skew_s),
        "positions": None if sensors.positions is None else codec.plain(sensors.positions),
    }
    return {**told, "images": codec.plain(sensors.images)} if with_images else told


def _seconds(value: float) -> Any:
    """Return a time for a record: most are finite, and stand for themselves."""
    return value if type(value) is float and math.isfinite(value) else codec.plain(value)


def _origin(origin: Origin) -> dict[str, Any]:
    ended = {} if origin.ended_with is None else {"ended_with": origin.ended_with}
    return {**_identity(origin.id), **ended, "server": origin.server, "model_hash": origin.model_hash}


def _identity(identity: RequestId) -> dict[str, Any]:
    return {"session_epoch": identity.session_epoch, "episode": identity.episode, "sequence": identity.sequence}


def _request(server: str, request: ObservationRequest) -> dict[str, Any]:
    rows = request.prefix_model
    return {
        "server": server,
        "component": request.id.component,
        **_identity(request.id),
        "instruction": request.instruction,
        "inference_delay_steps": request.inference_delay_steps,
        "prefix_rows": len(rows),
        "prefix": codec.digest(np.ascontiguousarray(rows).tobytes()) if rows is not NO_ROWS and rows.size else "",
        "report": codec.plain(request.report),
        "episode_start": request.episode_start,
    }
