"""Causes in the setup of a robot: its file, its commands, its task, and its machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ros2_rfm_serving.monitoring.board import RobotRow
from ros2_rfm_serving.monitoring.counters import ROBOT, UNUSABLE_ACTIONS
from ros2_rfm_serving.monitoring.findings.finding import Finding
from ros2_rfm_serving.monitoring.findings.look import Diagnosis, Look, grown, refused
from ros2_rfm_serving.types import MONITOR
from ros2_rfm_serving.types.process_problems import CONFIGURATION

WORDS = 3
"""Number of diagnoses, a second apart, that have to agree."""
IDLE, EXECUTING = "idle", "executing"
CHUNK_KINDS = tuple(kind for kind, counter in ROBOT.items() if UNUSABLE_ACTIONS in counter.causes)
UNUSABLE = 3
"""Minimum refused chunks and actions of an observation; fewer are isolated cases."""
WAITING, MISSED = 0.5, 0.1
"""Minimum share of the time in which a process waits for a core that it needs, and minimum share of missed control periods."""
SHOWN = 5
"""Maximum names in a line."""
FIXES = {
    "action names and order": "write the model's action names, in its order, to `action_names` of the robot's file",
    "cameras": "write the model's cameras to `cameras` of the robot's file, and their topics to `camera_topics`",
    "state size": "write the model's state size to `state_size`, and see `state_parts`, `joints` and `joint_fields`",
    "conditioning": "set `conditioning` in the robot's file to one that the model can do",
    "control rate": "set `control_rate_hz` to the rate of the demonstrations, or `accept_other_rate: true`",
    "the demonstrations ran at": "set `control_rate_hz` to the rate of the demonstrations, or `accept_other_rate: true`",
    "other actions": "write the model's action names, in its order, to `action_names` of the robot's file",
}
"""Fix of a refused session by a part of the reason."""


def not_configured(look: Look) -> Iterator[Finding]:
    """Yield the running nodes that could not be configured."""
    for said in look.diagnosed:
        if said.name.endswith(f": {CONFIGURATION}"):
            yield Finding(
                cause="not configured",
                about=said.owner,
                evidence=(f"{said.owner} cannot be configured: {said.message}",),
                mend="correct what it names and start it again; `rfm check FACTORY` finds it before the start",
            )


def refused_session(look: Look) -> Iterator[Finding]:
    """Yield the robots that a server refuses a session, for a reason that an operator has to fix."""
    for robot, said in _spoken(look):
        for component, problem in said.texts("not served").items():
            fixes = [fix for what, fix in FIXES.items() if what in problem]
            if fixes and not said.values.get("model_mismatch"):
                yield Finding(
                    cause="refused session",
                    about=robot,
                    evidence=(f"{robot} gets no session for {component}: {problem}",),
                    mend="; ".join(dict.fromkeys(fixes)),
                )


def not_in_the_schedule(look: Look) -> Iterator[Finding]:
    """Yield the robots that run without a route, while others have one."""
    routed = sorted({route.robot for route in look.routes})
    for robot, rows in look.robots.items():
        if rows and routed and robot not in routed and not any(row.server for row in rows):
            yield Finding(
                cause="not in the schedule",
                about=robot,
                evidence=(f"{robot} runs, and the schedule has no server for it, but for {_named(routed)}",),
                mend="name it in `robot_fleet` of the descriptor, or correct its name; `rfm plan` shows for whom there is room",
            )


def unusable_actions(look: Look) -> Iterator[Finding]:
    """Yield the robots that refuse their chunks or the actions in them."""
    for robot, said in _spoken(look):
        rows = look.robots[robot]
        counts = {kind: grown(rows, refused(kind)) for kind in CHUNK_KINDS}
        num = sum(counts.values())
        if num < UNUSABLE:
            continue
        kinds = ", ".join(kind for kind, count in counts.items() if count)
        evidence = [f"{robot} refused {num:,.0f} chunks and actions in {look.seconds:.1f} s ({kinds})"]
        if problem := said.values.get("chunk_problem"):
            evidence.insert(0, f"the newest chunk has {problem}")
        yield Finding(
            cause="unusable actions",
            about=robot,
            evidence=tuple(evidence),
            mend="compare the units of the model's actions with `limits` (`unit_scale`, `command_scale`); is it the right model?",
        )


def unknown_start(look: Look) -> Iterator[Finding]:
    for robot, problem in _problems(look, "start_problem"):
        yield Finding(
            cause="unknown start",
            about=robot,
            evidence=(f"{robot} does not begin: {problem}",),
            mend="correct what it names in the robot's file: the sections State and Limits of docs/reference/integrate.md",
        )


def no_reset(look: Look) -> Iterator[Finding]:
    for robot, problem in _problems(look, "reset_problem"):
        yield Finding(
            cause="no reset service",
            about=robot,
            evidence=(f"{robot} {problem}",),
            mend=f"start what offers it, or give the task without a reset: `rfm task {robot}`",
        )


def nothing_moves(look: Look) -> Iterator[Finding]:
    for robot, problem in _problems(look, "still_problem"):
        topic = look.diagnoses[f"{robot}: robot"][-1].values.get("command_topic", "")
        yield Finding(
            cause="commands without motion",
            about=robot,
            evidence=(f"{robot} says: {problem}",),
            mend=(
                f"is the controller of {topic} active, the drive enabled, the emergency stop released, and the speed above zero? "
                f"`rfm topic echo {topic} --once` shows a command"
            ),
        )


def two_commanders(look: Look) -> Iterator[Finding]:
    for robot, problem in _problems(look, "command_rivals"):
        yield Finding(
            cause="two publishers of commands",
            about=robot,
            evidence=(f"beside {robot}, {problem}: the robot follows whichever came last",),
            mend="end the other one, or put a multiplexer between both and the controller",
        )


def doubtful_limits(look: Look) -> Iterator[Finding]:
    for robot, problem in _problems(look, "limits_problem"):
        yield Finding(
            cause="doubtful limits",
            about=robot,
            evidence=(f"{robot}: {problem}",),
            mend="write the limits in radians, as the joints are; `unit_scale` is for joints that are published in degrees",
        )


def no_simulated_clock(look: Look) -> Iterator[Finding]:
    for robot, problem in _problems(look, "clock_problem"):
        yield Finding(
            cause="no simulated clock",
            about=robot,
            evidence=(f"{robot}: {problem}",),
            mend="start the simulation, or set `use_sim_time: false` for a robot that is none",
        )


def other_state_rate(look: Look) -> Iterator[Finding]:
    for robot, problem in _problems(look, "state_rate_misfit"):
        said = look.diagnoses[f"{robot}: robot"][-1]
        if said.number("state_rate_hz") > said.number("control_rate_hz"):
            continue  # additional readings do no harm
        yield Finding(
            cause="other state rate",
            about=robot,
            evidence=(f"{robot}: {problem}",),
            mend="set `control_rate_hz` to the rate of the state, let the driver publish at that rate, or set `tick: timer`",
        )


def overloaded_machine(look: Look) -> Iterator[Finding]:
    """Yield the machines with missed control periods and fewer cores than their processes need."""
    machines: dict[str, list[Diagnosis]] = defaultdict(list)
    for said in look.diagnosed:
        if said.number("core_wait_share") > WAITING:
            machines[said.values.get("machine", "")].append(said)
    for machine, there in sorted(machines.items()):
        owners = tuple(sorted({said.owner for said in there}))
        late = [line for owner in owners if (line := _missed(look.diagnoses.get(f"{owner}: robot", [])))]
        if late:
            yield Finding(
                cause="overloaded machine",
                about=owners[0],
                concerns=owners[1:],
                evidence=(
                    _load(machine, there),
                    *late[:SHOWN],
                    *_planned(look),
                ),
                mend="end what else runs there, or give the factory a machine with more cores: `rfm capacity`, docs/hosts.md",
            )


def _load(machine: str, there: list[Diagnosis]) -> str:
    said = max(there, key=lambda one: one.number("core_wait_share"))
    load = f"{machine} has {said.number('machine_cores'):g} cores and a load of {said.number('machine_load'):.1f}"
    return f"{load}: {said.owner} waits for a core {said.number('core_wait_share'):.0%} of the time in which it wants one"


def _missed(said: list[Diagnosis]) -> str:
    """Return the number of missed control periods of a robot as text; empty: they are few."""
    if len(said) < 2:
        return ""
    missed, ticks = (said[-1].number(name) - said[0].number(name) for name in ("missed_periods", "ticks"))
    if not missed > MISSED * (missed + ticks):
        return ""
    late_ms = said[-1].number("tick_late_p99_ms")
    return f"{said[-1].owner} missed {missed:.0f} of {missed + ticks:.0f} control periods; 1 % begin {late_ms:.0f} ms late or more"


def _planned(look: Look) -> Iterator[str]:
    planned_hz = sum(schedule.predicted_actions_hz for schedule in look.current_schedules)
    if planned_hz > 0.0:
        chunks_hz = sum(rows[-1].chunk_rate_hz for rows in look.robots.values() if rows)
        yield f"the schedule predicts {planned_hz:.3g} chunks/s for all robots, and they get {chunks_hz:.3g}"


# --- notes: configured behaviour that may not be intended ----------------------------------------------------------------------


def no_task(look: Look) -> Iterator[Finding]:
    idle = [robot for robot, rows in look.robots.items() if rows and all(row.phase == IDLE for row in rows)]
    if idle:
        verb = "has" if len(idle) == 1 else "have"
        yield Finding(
            cause="no task",
            about=idle[0],
            concerns=tuple(idle[1:]),
            evidence=(f"{_named(idle)} {verb} no task",),
            mend=f"give one: `rfm task {idle[0]}`",
        )


def tried_out(look: Look) -> Iterator[Finding]:
    """Yield the robots in a dry run, and those at a reduced speed."""
    for robot, said in _spoken(look):
        if trial := said.values.get("trial"):
            yield Finding(
                cause="tried out",
                about=robot,
                evidence=(f"{robot} is tried out ({trial})",),
                mend="remove `dry_run` and `speed_scale` from its file to put it to work; `rfm connect --prove` ends by itself",
            )


def no_monitor(look: Look) -> Iterator[Finding]:
    judged = {route.robot for route in look.routes if route.component == MONITOR}
    routed = {route.robot for route in look.routes}
    alone = [robot for robot, rows in look.robots.items() if robot in routed - judged and _executes(rows)]
    if alone:
        yield Finding(
            cause="no monitor",
            about=alone[0],
            concerns=tuple(alone[1:]),
            evidence=(f"no monitor judges the task of {_named(alone)}, so that nothing can succeed: it ends with its time budget",),
            mend=f"add a component `monitor` to the task in the descriptor, or end the task yourself: `rfm order {alone[0]} abort`",
        )


def _executes(rows: list[RobotRow]) -> bool:
    return bool(rows) and rows[-1].phase == EXECUTING


def _named(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _spoken(look: Look) -> Iterator[tuple[str, Diagnosis]]:
    """Yield each robot that reports, with its newest diagnosis."""
    for robot, rows in look.robots.items():
        said = look.diagnosis(f"{robot}: robot")
        if rows and said:
            yield robot, said


def _problems(look: Look, name: str) -> Iterator[tuple[str, str]]:
    """Yield (robot, problem) where the last diagnoses of a robot all have a problem of this name."""
    for robot, _ in _spoken(look):
        said = look.diagnoses[f"{robot}: robot"][-WORDS:]
        if len(said) == WORDS and all(one.values.get(name) for one in said):
            yield robot, said[-1].values[name]
