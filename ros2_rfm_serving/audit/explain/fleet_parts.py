"""What people said, and whose schedule was followed."""

from __future__ import annotations

import math

from ros2_rfm_serving.audit.explain.behind import NONE, Moment
from ros2_rfm_serving.audit.explain.explanation import Part, clock
from ros2_rfm_serving.audit.log import ROBOT, SCHEDULER

WORDS_S = 60.0
"""What was said before that is over, unless it still holds."""


def people_part(found: Moment) -> Part:
    until_s = found.tick.stamp_s
    writers = {ROBOT + found.robot}
    said = [
        one
        for one in found.log.between(until_s - WORDS_S, until_s, "person")
        if one.writer in writers or not one.writer.startswith(ROBOT)
    ]
    if not said:
        return Part(name="people", lines=(f"nobody said anything in the {WORDS_S:.0f} s before",), facts={"said": []})
    lines = tuple(
        f"{clock(one.stamp_s)} {one.body.get('who') or 'somebody'}: {one.body.get('what')}"
        f" ({'done' if one.body.get('done') else 'refused'}{': ' + one.body['answer'] if one.body.get('answer') else ''})"
        for one in said
    )
    facts = [{"stamp_s": one.stamp_s, **{name: one.body.get(name) for name in ("who", "what", "answer", "done")}} for one in said]
    return Part(name="people", lines=lines, facts={"said": facts})


def schedule_part(found: Moment) -> Part:
    calls = found.log.within(ROBOT + found.robot, -math.inf, found.tick.stamp_s, "call")
    follows = [one for one in calls if one.body.get("do") == "follow"]
    schedule = ((follows[-1].body.get("args") or NONE).get("schedule") or NONE) if follows else NONE
    plans = found.log.within(SCHEDULER, -math.inf, found.tick.stamp_s, "plan")
    plan = next((plan for plan in reversed(plans) if plan.body.get("published", True)), None)
    epoch = schedule.get("epoch")
    facts = {"epoch": epoch, "scheduler": schedule.get("scheduler")}
    lines = [f"epoch {epoch}"] if epoch is not None else []
    if plan is not None:
        facts |= {name: plan.body.get(name) for name in ("how", "reason", "inputs_hash")} | {"planned_s": plan.stamp_s}
        lines.append(f"planned at {clock(plan.stamp_s)}: {plan.body.get('reason') or 'no reason was recorded'}")
    elif lines:
        known = SCHEDULER in found.log.by_writer
        lines.append("made before its scheduler's records begin" if known else "its scheduler's audit log is not in this recording")
    if not lines:
        return Part(
            name="schedule", lines=("no schedule was recorded around then; a robot goes on with the last that it has",), known=False
        )
    return Part(name="schedule", lines=tuple(lines), facts=facts)
