"""The schedule in force, as a plan of the whole factory and what came and went since: for a journal, and read from one."""

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
from ros2_rfm_serving.audit.journal import Journal
from ros2_rfm_serving.factory import Factory, Robot
from ros2_rfm_serving.scheduler import Fleet, Planned, seen
from ros2_rfm_serving.scheduler.admission import LOOKS
from ros2_rfm_serving.scheduler.answering import Refit
from ros2_rfm_serving.scheduler.losses import seeing
from ros2_rfm_serving.scheduler.watch import Finding
from ros2_rfm_serving.types import Schedule

PLANNED, CHANGED, BACKGROUND = "planned", "changed", "background"
ANEW = "anew"
Step = list[Any]
"""["release", robot], ["admit", robot, task, index, looks], ["again"], ["anew"] (see `Fleet.anew`) or ["saw",
what (`seen.to_json`), servers lost, servers back, robots that waited, whether those servers have again whom they had]"""


class Book:
    """Of one scheduler, on one thread. Keeps references alone; writes while somebody listens."""

    def __init__(self, journal: Journal, profiles: Path, clock: Callable[[], float], identity: int = 0) -> None:
        """identity: of the scheduler, as robots read it in its schedules; 0: it has none."""
        self._journal, self._clock, self._identity = journal, clock, identity
        self._profiles = functools.lru_cache(maxsize=1)(lambda models: profiles_hash(profiles, models))
        self._planned: Planned | None = None
        self._base: Fleet | None = None
        """Since when the steps are; None: since the plan."""
        self._steps: list[Step] = []
        self._told: set[str] = set()
        """Hashes of factories that this chain has."""
        journal.describes(begin=self._begin, snapshot=lambda: {"state": self._state()})

    def planned(self, planned: Planned, reason: str, *, background: bool = False, published: bool = True) -> None:
        """A whole factory. Before it is published."""
        if published:
            self._planned, self._base, self._steps = planned, None, []
        self._note(self._plan_of, planned, BACKGROUND if background else PLANNED, reason, published)

    def changed(self, before: Fleet, after: Fleet, reason: str) -> None:
        """Robots came and went; what is hosted stays."""
        steps = steps_of(before, after)
        if [ANEW] in steps:
            self._base, self._steps = after, []
        else:
            self._steps += steps
        self._note(_change_of, steps, after.schedule, reason)

    def saw(self, finding: Finding, waiting: Sequence[Robot], after: Fleet) -> None:
        """The factory is not as it was planned for."""
        who = [[robot.name, robot.task, robot.index] for robot in waiting]
        step = ["saw", seen.to_json(finding.seen), list(finding.lost), list(finding.back), who, _as_before(finding, after)]
        self._steps.append(step)
        self._note(_change_of, [step], after.schedule, finding.words)

    def person(self, what: str, answer: str, done: bool) -> None:
        """ROS does not say who calls."""
        said = {"what": what, "who": "", "answer": answer, "done": done}
        self._journal.note("person", self._clock(), lambda: said, urgent=True)

    # --- what it writes ---

    def _note(self, describe: Callable[..., Mapping[str, Any]], *args: Any) -> None:
        self._journal.note("plan", self._clock(), describe, *args, urgent=True)

    def _plan_of(self, planned: Planned, how: str, reason: str, published: bool) -> dict[str, Any]:
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
        """Return the last plan, with all that it was made from, and the steps since. None: there is no plan yet."""
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
            "steps": [list(step) for step in self._steps],
        }

    def _inputs(self, planned: Planned, factory: str) -> dict[str, Any]:
        return _inputs(planned, factory, self._profiles(models_of(planned.factory)))


def _as_before(finding: Finding, after: Fleet) -> bool:
    """Those who came back have again whom they had."""
    return not after.restored.isdisjoint(finding.back)


def _change_of(steps: Sequence[Step], schedule: Schedule, reason: str) -> dict[str, Any]:
    return {"how": CHANGED, "reason": reason, "published": True, "steps": list(steps), "schedule": codec.plain(schedule)}


def _inputs(planned: Planned, factory: str, profiles: str) -> dict[str, Any]:
    previous = planned.previous
    return {
        "factory": factory,
        "profiles": profiles,
        "robots": [[robot.name, robot.task, robot.index] for robot in planned.fleet.robots],
        "previous": previous.epoch if previous else 0,
        "policy": planned.policy,
        "seen": seen.to_json(planned.seen),
        "effort": planned.effort,
        **({"found": codec.plain(planned.found)} if planned.found else {}),
    }


def steps_of(before: Fleet, after: Fleet) -> list[Step]:
    """How one comes from the other."""
    if after.schedule is before.schedule:
        return [[ANEW]]
    stay = {(robot.name, robot.task) for robot in after.robots}
    were = {(robot.name, robot.task) for robot in before.robots}
    gone: list[Step] = [["release", robot.name] for robot in before.robots if (robot.name, robot.task) not in stay]
    came: list[Step] = [
        ["admit", robot.name, robot.task, robot.index, after.looks.get(robot.name, LOOKS)]
        for robot in after.robots
        if (robot.name, robot.task) not in were
    ]
    return [*gone, *came] or [["again"]]


def stepped(fleet: Fleet, steps: Sequence[Step], factory: Factory, refit: Refit) -> Fleet:
    """Raises: `ScheduleError`."""
    for do, *args in steps:
        if do == "release":
            fleet = fleet.release(args[0])
        elif do == "admit":
            fleet = fleet.admit(Robot(name=args[0], task=args[1], index=args[2]), looks=(*args[3:], LOOKS)[0])
        elif do == "saw":
            said, lost, back, *more = args
            waiting, as_before = more if len(more) > 1 else ((*more, ())[0], False)
            who = [Robot(name=name, task=task, index=index) for name, task, index in waiting]
            fleet, _ = seeing(fleet, factory, seen.from_json(said), lost, back, refit, who, as_before=as_before)
        else:
            fleet = fleet.anew() if do == ANEW else fleet.again()
    return fleet


def base_of(fleet: Fleet) -> dict[str, Any]:
    """A fleet that was taken anew, as whoever reads a snapshot has it again."""
    return {
        "schedule": codec.plain(fleet.schedule),
        "robots": [[robot.name, robot.task, robot.index] for robot in fleet.robots],
        "tasks": [task.name for task in fleet.problem.classes],
        "seen": seen.to_json(fleet.problem.seen),
        "owed_hz": dict(fleet.owed_hz),
        "standbys": fleet.standbys,
    }


def factory_of(factory: Factory) -> tuple[Any, str]:
    """For JSON, and its hash."""
    dumped = codec.plain(factory.model_dump(mode="json"))
    return dumped, hashed(dumped)


def hashed(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def models_of(factory: Factory) -> frozenset[str]:
    return frozenset(component.model for task in factory.tasks.values() for component in task.components.values())


def profiles_hash(folder: Path, models: frozenset[str]) -> str:
    """Of the measured figures of these models, and of the catalogue without the others: a folder may learn of more."""
    rows = {}
    for file in folder.glob("*.csv"):
        with file.open(encoding="utf-8", newline="") as lines:
            rows[file.name] = [row for row in csv.reader(lines) if row and row[0] in models]
    catalogue = yaml.safe_load((folder / "models.yaml").read_text(encoding="utf-8"))
    known = {name: entry for name, entry in catalogue["models"].items() if name in models}
    return hashed([{name: found for name, found in rows.items() if found}, {**catalogue, "models": known}])
