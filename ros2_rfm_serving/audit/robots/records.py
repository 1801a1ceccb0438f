"""Records of a robot: inputs and decisions of its core, in one form for recording and replay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.robot import RobotCore, Sensors, TickResult, events
from ros2_rfm_serving.robot.why import CommandOrigin, CommandSource, Why
from ros2_rfm_serving.types import NO_ROWS, ObservationRequest, RequestId, RobotState, TaskPhase

EncodeArray = Callable[[np.ndarray[Any, Any]], Any]
TICK, EVENT = "tick", "event"
"""Kinds of records: a control tick, any other event, and a change of the visible state."""

STEP, PARTIAL_STEP, FALLBACK, STOP, NO_COMMAND = "step", "partial_step", "fallback", "stop", "none"
"""Sources of a command: a step of a chunk, a part of the way to one, the fallback ladder, an immediate stop; or there is none."""
SOURCES: Mapping[CommandSource, str] = {
    CommandSource.STEP: STEP,
    CommandSource.PARTIAL_STEP: PARTIAL_STEP,
    CommandSource.FALLBACK: FALLBACK,
    CommandSource.STOP: STOP,
    CommandSource.NONE: NO_COMMAND,
}
EXECUTES = frozenset({STEP, PARTIAL_STEP})
"""Sources of commands that execute a chunk."""


def tick_record(why: Why, sensors: Sensors | None, may_act: bool, tick: TickResult) -> bytes:
    """Return the record of a tick, as JSON. why: that of the core after the tick. Images are those of a request; no decision reads
    one."""

    def record(array: EncodeArray) -> dict[str, Any]:
        event = {"~": "ControlTick", "sensors": _sensors(sensors, bool(tick.requests), array), "may_act": may_act}
        return {"event": event, **decided(why, tick, array)}

    return codec.packed(record)


def decided(why: Why, tick: TickResult, array: EncodeArray = codec.array) -> dict[str, Any]:
    """Return the decisions of a tick."""
    found: dict[str, Any] = {
        "command": None if tick.command is None else array(tick.command),
        "why": why_record(why, array),
        "requests": [_request(server, request) for server, request in tick.requests] if tick.requests else [],
        "session_requests": codec.plain(tick.opens) if tick.opens else [],
        "episode_resets": codec.plain(tick.resets) if tick.resets else [],
    }
    if tick.trajectory is not None:
        found["trajectory"] = codec.plain(tick.trajectory)
    return found


def failed_tick(sensors: Sensors | None, may_act: bool, error: BaseException) -> dict[str, Any]:
    event = {"~": "ControlTick", "sensors": _sensors(sensors, True, codec.array), "may_act": may_act}
    return {"event": event, "raised": codec.raised(error)}


def event_record(event: events.Event, result: object) -> dict[str, Any]:
    return {"event": codec.plain(event), "result": codec.plain(result)}


def failed_event(event: events.Event, error: BaseException) -> dict[str, Any]:
    return {"event": codec.plain(event), "raised": codec.raised(error)}


VisibleState = tuple[RobotState, TaskPhase, bool]
"""Fail-safe state, phase of the task, and whether the robot is paused."""


def visible_state(core: RobotCore) -> VisibleState:
    """Return the state that people see."""
    return core.state, core.task.phase if core.task is not None else TaskPhase.IDLE, core.paused


def state_record(visible: VisibleState) -> dict[str, Any]:
    """Return the visible state in the form of transitions."""
    state, phase, paused = visible
    return {"state": state.name, "phase": phase.name, "paused": paused}


def why_record(why: Why, array: EncodeArray = codec.array) -> dict[str, Any]:
    found: dict[str, Any] = {"source": SOURCES[why.by]}
    if why.origin is not None:
        found["step"], found["chunk"] = why.row, _origin(why.origin)
    if not math.isnan(why.staleness_s):
        found["staleness_s"] = why.staleness_s
    if not math.isnan(why.oldest_staleness_s):
        found["oldest_staleness_s"] = why.oldest_staleness_s
    if why.limited_from is not None:
        found["limited_from"] = array(why.limited_from)
    if why.rung is not None:
        found["fallback"] = why.rung.value
    if why.reason:
        found["reason"] = why.reason
    return found


def _sensors(sensors: Sensors | None, with_images: bool, array: EncodeArray) -> dict[str, Any] | None:
    """Return the codec's form of the readings, with images only for a request."""
    if sensors is None:
        return None
    return {
        "~": "Sensors",
        "state": array(sensors.state),
        "state_s": _seconds(sensors.state_s),
        "images": codec.plain(sensors.images) if with_images else [],
        "images_s": _seconds(sensors.images_s),
        "skew_s": _seconds(sensors.skew_s),
        "positions": None if sensors.positions is None else array(sensors.positions),
    }


def _seconds(value: float) -> Any:
    """Return a time for JSON: most are finite Python numbers, and represent themselves."""
    return value if type(value) is float and math.isfinite(value) else codec.plain(value)


def _origin(origin: CommandOrigin) -> dict[str, Any]:
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
        "prefix_steps": len(rows),
        "prefix_digest": codec.digest(np.ascontiguousarray(rows).tobytes()) if rows is not NO_ROWS and rows.size else "",
        "report": codec.plain(request.report),
        "episode_start": request.episode_start,
    }
