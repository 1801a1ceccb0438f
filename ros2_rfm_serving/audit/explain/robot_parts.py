"""Parts of an explanation about the robot: state, sensors, request, chunk, command and events."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.explain.behind import NONE, Moment, since
from ros2_rfm_serving.audit.explain.explanation import Part, Shown, clock, duration
from ros2_rfm_serving.audit.log import ROBOT, Entry, event_name, event_of, mapping, real, several
from ros2_rfm_serving.audit.robots.records import FALLBACK, PARTIAL_STEP, STOP
from ros2_rfm_serving.errors import RfmError


def state_part(found: Moment) -> Part:
    """Return the robot's fail-safe state and task."""
    until_s = found.tick.stamp_s
    before = [one for one in found.log.within(ROBOT + found.robot, -math.inf, until_s, "transition", "event") if found.own(one)]
    changed = next((one for one in reversed(before) if one.kind == "transition"), None)
    task = next((_goal(one).get("task") for one in reversed(before) if event_name(one) == "TaskStarted"), None)
    facts: dict[str, Any] = {}
    lines = []
    if changed is None:
        lines.append("no change of state since the records of its process begin")
    else:
        to, was = changed.body.get("to") or NONE, changed.body.get("from") or NONE
        facts = {"state": to.get("state"), "phase": to.get("phase"), "paused": to.get("paused"), "since_s": changed.stamp_s}
        facts |= {"before": was.get("state"), "reason": changed.body.get("reason")}
        lines.append(f"{_named(to)} since {clock(changed.stamp_s)} (before: {_named(was)}){_because(changed.body)}")
    if missing := found.missing(changed.stamp_s if changed else -math.inf):
        lines.append(f"{missing} of its records are missing since then: its state may have changed meanwhile")
    facts["certain"] = not missing
    if task is not None:
        facts["task"] = task
        lines.append(f"task {task}")
    if found.key is not None:
        facts["episode"] = found.key.episode
        lines.append(f"episode {found.key.episode}, instruction: {found.request.get('instruction') or 'not recorded'}")
    return Part(name="robot", lines=tuple(lines), facts=facts)


def _goal(start: Entry) -> Mapping[str, Any]:
    return mapping(event_of(start).get("goal"))


def _named(state: Mapping[str, Any]) -> str:
    return f"{state.get('state', '?')}, {str(state.get('phase', '?')).lower()}" + ", paused" * bool(state.get("paused"))


def _because(body: Mapping[str, Any]) -> str:
    return f": {body['reason']}" if body.get("reason") else ""


def sensors_part(found: Moment) -> Part:
    read = event_of(found.tick).get("sensors")
    if not read:
        return Part(name="sensors", lines=("nothing had been read yet",), known=False)
    age_s = found.tick.t_s - real(read.get("state_s"))
    lines = [f"state of {duration(age_s)} before: {numbers(read.get('state'))}"]
    facts: dict[str, Any] = {"state_age_s": age_s, "state": read.get("state"), "positions": read.get("positions")}
    if found.sent is not None and (sent := event_of(found.sent).get("sensors")):
        camera_s, skew_s = found.tick.t_s - real(sent.get("images_s")), real(sent.get("skew_s"))
        facts |= {"camera_age_s": camera_s, "skew_s": skew_s, "images": [image._asdict() for image in shown(found)]}
        names = ", ".join(image.camera for image in shown(found)) or "none"
        lines.append(
            f"images behind the request: {names}; the oldest of {duration(camera_s)} before, readings {duration(skew_s)} apart"
        )
    return Part(name="sensors", lines=tuple(lines), facts=facts)


def shown(found: Moment) -> tuple[Shown, ...]:
    """Return the images of the request."""
    images = several(mapping(event_of(found.sent).get("sensors")).get("images")) if found.sent else []
    digests = ((mapping(image).get("camera"), mapping(mapping(image).get("data")).get("sha256")) for image in images)
    return tuple(Shown(str(camera), str(digest)) for camera, digest in digests if digest)


def request_part(found: Moment) -> Part:
    if found.key is None:
        return Part(name="request", lines=("no request to a policy is recorded before this moment",), known=False)
    if found.sent is None:
        return Part(name="request", lines=("what was asked is not in this recording",), known=False)
    asked, before_s = found.request, found.tick.stamp_s - found.sent.stamp_s
    names = ("session_epoch", "episode", "sequence", "inference_delay_steps", "prefix_steps", "instruction", "server")
    facts = {name: asked.get(name) for name in names} | {"sent_s": found.sent.stamp_s}
    lines = [f"{_id(found)} to {asked.get('server')}, sent {duration(before_s)} before ({clock(found.sent.stamp_s)})"]
    delay, rows = asked.get("inference_delay_steps") or 0, asked.get("prefix_steps") or 0
    lines.append(f"expected delay {delay} steps, prefix of {rows} rows that were still to be executed")
    return Part(name="request", lines=tuple(lines), facts=facts)


def _id(found: Moment) -> str:
    assert found.key is not None
    return f"session {found.key.session_epoch}, episode {found.key.episode}, sequence {found.key.sequence}"


def chunk_part(found: Moment) -> Part:
    if found.key is None:
        return Part(name="chunk", lines=("none: no request to a policy is recorded before",), known=False)
    if found.answered is None:
        if found.sent is None or found.executes:
            return Part(name="chunk", lines=("when its chunk came is not in this recording",), known=False)
        waited = duration(found.tick.stamp_s - found.sent.stamp_s)
        return Part(name="chunk", lines=(f"none: no answer after {waited}",), facts={"answered": False})
    reply, before_s = found.reply, found.tick.stamp_s - found.answered.stamp_s
    rows, confidence = array(reply.get("chunk_robot")), array(reply.get("confidence"))
    horizon, counted = reply.get("execution_horizon") or 0, found.answered.body.get("result")
    facts = {"answered": True, "came_s": found.answered.stamp_s, "rows": len(rows), "execution_horizon": horizon}
    lines = [f"of {len(rows)} rows, came {duration(before_s)} before; execute {horizon or 'all'} of them"]
    if (ended_with := reply.get("ended_with")) is not None and found.key is not None:
        facts |= {"ended_with": ended_with}
        lines.append(f"began with observation {found.key.sequence}, ended with {ended_with}: row 0 counts from that")
    if len(confidence):
        facts |= {"confidence": confidence.tolist()}
        lines.append(f"confidence {confidence[0]:.2f} at the first row, {confidence[-1]:.2f} at the last")
    if counted is False:
        facts["refused"] = True
        lines.append("it did not count: refused by the robot (stale, out of its limits, or for another episode)")
    return Part(name="chunk", lines=tuple(lines), facts=facts)


def command_part(found: Moment) -> Part:
    why, command = found.why, found.tick.body.get("command")
    if found.tick.body.get("raised"):
        return Part(name="command", lines=(f"none: it failed, {found.tick.body['raised']}",), facts=dict(found.tick.body))
    if not why:
        return Part(name="command", lines=(f"{numbers(command)}; why was not recorded",), known=False)
    facts = {"command": command, **why}
    return Part(name="command", lines=_executed(found) if found.executes else _held(found), facts=facts | _since(found))


def _executed(found: Moment) -> tuple[str, ...]:
    why = found.why
    which = "on the way to row" if why["source"] == PARTIAL_STEP else "row"
    lines = [f"{which} {why.get('step', '?')} of the chunk: {numbers(found.tick.body.get('command'))}"]
    wanted = why.get("limited_from")
    lines.append(f"limits changed it; wanted was {numbers(wanted)}" if wanted is not None else "limits changed nothing")
    lines.append(f"the observation behind it was {duration(real(why.get('staleness_s')))} old")
    if "oldest_staleness_s" in why:
        lines.append(f"the one that its chunk began with was {duration(real(why['oldest_staleness_s']))} old")
    return tuple(lines)


def _held(found: Moment) -> tuple[str, ...]:
    why, begin_s, periods = found.why, *since(found)
    sources = {FALLBACK: f"fallback ladder: {why.get('fallback', '?')}", STOP: "stands at once"}
    does = sources.get(str(why.get("source")), "nothing was commanded")
    command = found.tick.body.get("command")
    sent = f"; command {numbers(command)}" if command is not None else "; no command went out"
    ticks = found.log.of(ROBOT + found.robot, "tick")
    lasts = "at least " * (ticks[0].stamp_s == begin_s) + duration(found.tick.stamp_s - begin_s)
    return (
        f"no action was executed: {why.get('reason') or 'no reason was recorded'}",
        f"{does}{sent}",
        f"so since {clock(begin_s)} ({lasts}, {periods} control period{'s' * (periods != 1)})",
    )


def _since(found: Moment) -> dict[str, Any]:
    if found.executes:
        return {}
    begin_s, periods = since(found)
    return {"held_since_s": begin_s, "held_periods": periods}


def events_part(found: Moment, window_s: float = 5.0) -> Part | None:
    """Return the recent events that change a robot's behaviour; None without any."""
    until_s = found.tick.stamp_s
    events = found.log.within(ROBOT + found.robot, until_s - window_s, until_s, "event")
    notable = [one for one in events if (event_name(one) in NOTABLE or one.body.get("raised")) and found.own(one)]
    missing = found.missing(until_s - window_s)
    if not (notable or missing):
        return None
    lines = tuple(f"{clock(one.stamp_s)} {NOTABLE.get(event_name(one), event_name(one))}{_details(one)}" for one in notable[-8:])
    lines += (f"{missing} of its records of these {window_s:.0f} s are missing",) * bool(missing)
    facts: dict[str, Any] = {"missing": missing}
    facts["events"] = [{"stamp_s": one.stamp_s, "event": event_of(one)} for one in notable]
    return Part(name="events", lines=lines, facts=facts)


NOTABLE: Mapping[str, str] = {
    "ServerLost": "server lost",
    "SessionOpened": "session opened",
    "SessionRefused": "session refused",
    "PauseRequested": "pause",
    "ResumeRequested": "resume",
    "AbortRequested": "abort",
    "TaskCanceled": "task canceled",
    "TaskFinished": "task finished",
    "TaskStarted": "task started",
    "ConfigurationChanged": "configuration changed",
    "ResetStarted": "reset started",
    "ResetFinished": "reset finished",
    "StopRequested": "stop command",
    "TrajectoryStopRequested": "stop of the trajectory",
    "CountsAdded": "counted",
}
"""Event -> its name in an explanation."""


def _details(entry: Entry) -> str:
    event = event_of(entry)
    if event_name(entry) == "ResetFinished":  # `problem` is the reset's answer, also where it succeeded
        answer = event.get("problem")
        return ("" if event.get("ok") else ", failed") + (f": {answer}" if answer else "")
    values = event if event_name(entry) != "CountsAdded" else mapping(event.get("counts"))
    details = [f"{name} {value}" for name, value in values.items() if isinstance(value, (str, int, float)) and value != ""]
    details = [one for one in details if not one.startswith("~ ")]
    return f" ({', '.join(details)})" if details else ""


def array(found: Any) -> np.ndarray[Any, Any]:
    """Return a recorded array; empty in place of any other value."""
    try:
        made = codec.value(found)
    except RfmError:
        made = None
    return made if isinstance(made, np.ndarray) else np.zeros(0)


def numbers(found: Any, most: int = 8) -> str:
    values = array(found).ravel().tolist() if found is not None else []
    if not values:
        return "none"
    shown_values = ", ".join("nan" if math.isnan(value) else f"{value:.4g}" for value in values[:most])
    return f"[{shown_values}{', ...' if len(values) > most else ''}]" + (f" ({len(values)})" if len(values) > most else "")
