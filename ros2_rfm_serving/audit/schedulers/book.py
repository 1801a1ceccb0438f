"""Schedule log: the active schedule as a plan of the whole factory and the steps since, written to and read from a journal."""

from __future__ import annotations

import csv
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import yaml

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.chain import OPERATOR_COMMAND
from ros2_rfm_serving.audit.journal import Journal
from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import Factory, RobotEntry
from ros2_rfm_serving.scheduler import ActiveFleet, PlanResult, estimates
from ros2_rfm_serving.scheduler.admission import LOOKS
from ros2_rfm_serving.scheduler.estimation import EstimateChange
from ros2_rfm_serving.scheduler.failover import seeing
from ros2_rfm_serving.scheduler.plan_service import Refit
from ros2_rfm_serving.types import Schedule

PLAN = "plan"
"""Kind of its records."""
PLANNED, CHANGED, BACKGROUND = "planned", "changed", "background"
RELEASE, ADMIT, OBSERVE, REPUBLISH, REBASE = "release", "admit", "observe", "republish", "rebase"
Step = Mapping[str, Any]
"""Change of the fleet, for JSON. Its key `step` has the kind; the others are:

release     robot
admit       robot, task, index, evaluations
observe     estimates (`estimates.to_json`), lost_servers, returned_servers, waiting_robots, restores_assignments (whether returned
            servers serve their former robots again)
republish   none: the same fleet under the next epoch
rebase      none: the same fleet without the history of its changes (`ActiveFleet.anew`)
"""


class Book:
    """Schedule log of one scheduler, on one thread. It keeps references alone, and writes while there are subscribers."""

    def __init__(self, journal: Journal, profiles: Path, clock: Callable[[], float], identity: int = 0) -> None:
        """Begin a log. identity: that of the scheduler in its schedules; 0 without one."""
        self._journal, self._clock, self._identity = journal, clock, identity
        self._profiles = functools.lru_cache(maxsize=1)(lambda models: profiles_hash(profiles, models))
        self._planned: PlanResult | None = None
        self._base: ActiveFleet | None = None
        """Fleet from which the steps start; None: that of the plan."""
        self._steps: list[Step] = []
        self._told: set[str] = set()
        """Hashes of the factories in this chain."""
        journal.describes(begin=self._begin, snapshot=lambda: {"state": self._state()})

    def planned(self, planned: PlanResult, reason: str, *, background: bool = False, published: bool = True) -> None:
        """Record a plan of a whole factory, before it is published."""
        if published:
            self._planned, self._base, self._steps = planned, None, []
        self._note(self._plan_of, planned, BACKGROUND if background else PLANNED, reason, published)

    def changed(self, before: ActiveFleet, after: ActiveFleet, reason: str) -> None:
        """Record that robots came or left, while the placements stay."""
        steps = steps_of(before, after)
        if is_rebased(steps):
            self._base, self._steps = after, []
        else:
            self._steps += steps
        self._note(_change_of, steps, after.schedule, reason)

    def saw(self, finding: EstimateChange, waiting: Sequence[RobotEntry], after: ActiveFleet) -> None:
        """Record that the factory differs from the one that was planned for."""
        who = [[robot.name, robot.task, robot.index] for robot in waiting]
        step = {
            "step": OBSERVE,
            "estimates": estimates.to_json(finding.seen),
            "lost_servers": list(finding.lost),
            "returned_servers": list(finding.back),
            "waiting_robots": who,
            "restores_assignments": _as_before(finding, after),
        }
        self._steps.append(step)
        self._note(_change_of, [step], after.schedule, finding.words)

    def person(self, what: str, answer: str, done: bool) -> None:
        """Record a command of an operator; ROS does not identify the caller."""
        said = {"command": what, "operator": "", "answer": answer, "done": done}
        self._journal.note(OPERATOR_COMMAND, self._clock(), lambda: said, urgent=True)

    # --- records ---

    def _note(self, describe: Callable[..., Mapping[str, Any]], *args: Any) -> None:
        self._journal.note(PLAN, self._clock(), describe, *args, urgent=True)

    def _plan_of(self, planned: PlanResult, how: str, reason: str, published: bool) -> dict[str, Any]:
        factory, text = factory_of(planned.factory)
        more = {} if text in self._told else {"factory": factory}
        self._told.add(text)
        inputs = self._inputs(planned, text)
        return {
            "how": how,
            "reason": reason,
            "published": published,
            "inputs": inputs,
            "inputs_hash": hashed(inputs),
            "schedule": codec.plain(planned.fleet.schedule),
            **more,
        }

    def _begin(self) -> dict[str, Any]:
        self._told = set()
        return {"scheduler": self._identity} if self._identity else {}

    def _state(self) -> dict[str, Any] | None:
        """Return the last plan with its inputs, and the steps since; None before the first plan."""
        planned = self._planned
        if planned is None:
            return None
        factory, text = factory_of(planned.factory)
        self._told.add(text)
        return {
            "factory": factory,
            "inputs": self._inputs(planned, text),
            "previous": codec.plain(planned.previous),
            "schedule": codec.plain(planned.fleet.schedule),
            **({"base": base_of(self._base)} if self._base else {}),
            "steps": list(self._steps),
        }

    def _inputs(self, planned: PlanResult, factory: str) -> dict[str, Any]:
        return _inputs(planned, factory, self._profiles(models_of(planned.factory)))


def _as_before(finding: EstimateChange, after: ActiveFleet) -> bool:
    """Return whether returned servers serve their former robots again."""
    return not after.restored.isdisjoint(finding.back)


def _change_of(steps: Sequence[Step], schedule: Schedule, reason: str) -> dict[str, Any]:
    return {"how": CHANGED, "reason": reason, "published": True, "steps": list(steps), "schedule": codec.plain(schedule)}


def _inputs(planned: PlanResult, factory: str, profiles: str) -> dict[str, Any]:
    previous = planned.previous
    return {
        "factory_hash": factory,
        "profiles_hash": profiles,
        "robots": [[robot.name, robot.task, robot.index] for robot in planned.fleet.robots],
        "previous_epoch": previous.epoch if previous else 0,
        "policy": planned.policy,
        "estimates": estimates.to_json(planned.seen),
        "effort": planned.effort,
        **({"active_schedule": codec.plain(planned.found)} if planned.found else {}),
    }


def steps_of(before: ActiveFleet, after: ActiveFleet) -> list[Step]:
    """Return the steps from one fleet to another."""
    if after.schedule is before.schedule:
        return [{"step": REBASE}]
    stay = {(robot.name, robot.task) for robot in after.robots}
    were = {(robot.name, robot.task) for robot in before.robots}
    gone: list[Step] = [{"step": RELEASE, "robot": robot.name} for robot in before.robots if (robot.name, robot.task) not in stay]
    came: list[Step] = [
        {
            "step": ADMIT,
            "robot": robot.name,
            "task": robot.task,
            "index": robot.index,
            "evaluations": after.looks.get(robot.name, LOOKS),
        }
        for robot in after.robots
        if (robot.name, robot.task) not in were
    ]
    return [*gone, *came] or [{"step": REPUBLISH}]


def is_rebased(steps: Sequence[Step]) -> bool:
    return any(step["step"] == REBASE for step in steps)


def stepped(fleet: ActiveFleet, steps: Sequence[Step], factory: Factory, refit: Refit) -> ActiveFleet:
    """Return the fleet after some steps. Raises: `ScheduleError` when a step is impossible, or of no known kind."""
    for step in steps:
        kind = step["step"]
        if kind not in APPLY:
            raise ScheduleError(f"{kind!r:.60} is no step of this version's schedulers")
        fleet = APPLY[kind](fleet, step, factory, refit)
    return fleet


def _admitted(fleet: ActiveFleet, step: Step, factory: Factory, refit: Refit) -> ActiveFleet:
    return fleet.admit(RobotEntry(name=step["robot"], task=step["task"], index=step["index"]), looks=step["evaluations"])


def _observed(fleet: ActiveFleet, step: Step, factory: Factory, refit: Refit) -> ActiveFleet:
    waiting = [RobotEntry(name=name, task=task, index=index) for name, task, index in step["waiting_robots"]]
    changes = (estimates.from_json(step["estimates"]), step["lost_servers"], step["returned_servers"])
    return seeing(fleet, factory, *changes, refit, waiting, as_before=step["restores_assignments"])[0]


APPLY: Mapping[str, Callable[[ActiveFleet, Step, Factory, Refit], ActiveFleet]] = {
    RELEASE: lambda fleet, step, factory, refit: fleet.release(step["robot"]),
    ADMIT: _admitted,
    OBSERVE: _observed,
    REPUBLISH: lambda fleet, step, factory, refit: fleet.again(),
    REBASE: lambda fleet, step, factory, refit: fleet.anew(),
}
"""Kind of a step -> function that returns the fleet after it."""


def base_of(fleet: ActiveFleet) -> dict[str, Any]:
    """Return the recorded form of a rebuilt fleet, from which a reader restores it."""
    return {
        "schedule": codec.plain(fleet.schedule),
        "robots": [[robot.name, robot.task, robot.index] for robot in fleet.robots],
        "tasks": [task.name for task in fleet.problem.classes],
        "estimates": estimates.to_json(fleet.problem.seen),
        "action_rates_hz": dict(fleet.owed_hz),
        "standbys": fleet.standbys,
    }


def factory_of(factory: Factory) -> tuple[Any, str]:
    """Return the factory for JSON, and its hash."""
    dumped = codec.plain(factory.model_dump(mode="json"))
    return dumped, hashed(dumped)


def hashed(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def models_of(factory: Factory) -> frozenset[str]:
    return frozenset(component.model for task in factory.tasks.values() for component in task.components.values())


def profiles_hash(folder: Path, models: frozenset[str]) -> str:
    """Return the hash of these models' measured figures and catalogue, without other models, which a folder may gain later."""
    rows = {}
    for file in folder.glob("*.csv"):
        with file.open(encoding="utf-8", newline="") as lines:
            rows[file.name] = [row for row in csv.reader(lines) if row and row[0] in models]
    catalogue = yaml.safe_load((folder / "models.yaml").read_text(encoding="utf-8"))
    known = {name: entry for name, entry in catalogue["models"].items() if name in models}
    return hashed([{name: found for name, found in rows.items() if found}, {**catalogue, "models": known}])
