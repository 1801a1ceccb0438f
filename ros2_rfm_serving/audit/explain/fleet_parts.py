"""Parts of an explanation about operators, the active schedule, and processes."""

from __future__ import annotations

import math

from ros2_rfm_serving.audit.chain import OPERATOR_COMMAND
from ros2_rfm_serving.audit.explain.behind import NONE, Moment
from ros2_rfm_serving.audit.explain.explanation import Part, clock
from ros2_rfm_serving.audit.explain.processes import Presence, fate_in, fate_of
from ros2_rfm_serving.audit.log import ROBOT, SCHEDULER, SERVER, Entry, event_name, event_of, mapping
from ros2_rfm_serving.types.schedule_follower import ScheduleVerdict

WORDS_S = 60.0
"""Largest age of listed operator commands."""


def people_part(found: Moment) -> Part:
    until_s = found.tick.stamp_s
    writers = {ROBOT + found.robot}
    said = [
        one
        for one in found.log.between(until_s - WORDS_S, until_s, OPERATOR_COMMAND)
        if one.writer in writers or not one.writer.startswith(ROBOT)
    ]
    if not said:
        return Part(name="people", lines=(f"no operator gave a command in the {WORDS_S:.0f} s before",), facts={"said": []})
    lines = tuple(
        f"{clock(one.stamp_s)} {one.body.get('operator') or 'an operator'}: {one.body.get('command')}"
        f" ({'done' if one.body.get('done') else 'refused'}{': ' + one.body['answer'] if one.body.get('answer') else ''})"
        for one in said
    )
    facts = [
        {"stamp_s": one.stamp_s, **{name: one.body.get(name) for name in ("operator", "command", "answer", "done")}} for one in said
    ]
    return Part(name="people", lines=lines, facts={"said": facts})


def schedule_part(found: Moment) -> Part:
    """Return the schedule that the robot followed, by scheduler and epoch, because each scheduler counts its epochs from 1."""
    events = found.log.within(ROBOT + found.robot, -math.inf, found.tick.stamp_s, "event")
    follows = [one for one in events if event_name(one) == "ScheduleReceived" and found.own(one) and _was_taken(one)]
    schedule = mapping(event_of(follows[-1]).get("schedule")) if follows else NONE
    epoch, scheduler = schedule.get("epoch"), schedule.get("scheduler")
    if epoch is None:
        words = "no schedule was recorded around then; a robot goes on with the last that it has"
        return Part(name="schedule", lines=(words,), known=False)
    missing = found.missing(follows[-1].stamp_s)
    facts = {"epoch": epoch, "scheduler": scheduler, "certain": not missing}
    lines = [f"epoch {epoch}" + (f" of scheduler {scheduler:x}" if isinstance(scheduler, int) and scheduler else "")]
    if missing:
        lines.append(f"{missing} of the robot's records are missing since then: it may have followed another schedule meanwhile")
    runs = [run for run in found.log.runs.get(SCHEDULER, ()) if run.scheduler in (scheduler, 0)]
    plan = _plan_of(found, epoch, {run.run for run in runs})
    if plan is not None:
        facts |= {name: plan.body.get(name) for name in ("how", "reason", "inputs_hash")} | {"planned_s": plan.stamp_s}
        lines.append(f"planned at {clock(plan.stamp_s)}: {plan.body.get('reason') or 'no reason was recorded'}")
    elif runs:
        lines.append("made before its scheduler's records begin")
    else:
        lines.append("its scheduler's audit log is not in this recording")
    fate = fate_in(found.log, runs, found.at_s)
    if fate.presence not in (Presence.RUNNING, Presence.UNKNOWN):
        lines.append(f"its scheduler: {fate.text}")
    return Part(name="schedule", lines=tuple(lines), facts=facts | {"process": fate.facts()})


def _was_taken(follow: Entry) -> bool:
    """Return whether the robot followed a schedule; it refuses older ones, and those of a rival while its scheduler is alive."""
    return mapping(follow.body.get("result")).get("member") not in (ScheduleVerdict.STALE.name, ScheduleVerdict.RIVAL.name)


def _plan_of(found: Moment, epoch: object, runs: set[int]) -> Entry | None:
    """Return the plan with that epoch in its scheduler's chains; among several considered ones the published plan."""
    plans = found.log.within(SCHEDULER, -math.inf, math.inf, "plan")
    same = (one for one in plans if one.run in runs and mapping(one.body.get("schedule")).get("epoch") == epoch)
    return next((plan for plan in same if plan.body.get("published", True)), None)


def processes_part(found: Moment) -> Part:
    """Return the state of each process at the moment by its records: robot, servers and schedulers."""
    writers = [ROBOT + found.robot, *(name for name in sorted(found.log.runs) if name.startswith((SERVER, SCHEDULER)))]
    fates = {writer: fate_of(found.log, writer, found.at_s) for writer in writers}
    lines = [f"{writer}: {fate.text}" for writer, fate in fates.items() if fate.presence is not Presence.RUNNING]
    running = [writer for writer, fate in fates.items() if fate.presence is Presence.RUNNING]
    lines += [f"{', '.join(running)}: records were written before and after"] * bool(running)
    return Part(name="processes", lines=tuple(lines), facts={"presence": {name: fate.facts() for name, fate in fates.items()}})
