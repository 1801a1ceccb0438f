"""Replay of a scheduler's plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.schedulers.book import (
    BACKGROUND,
    CHANGED,
    PLAN,
    base_of,
    hashed,
    is_rebased,
    models_of,
    profiles_hash,
    stepped,
)
from ros2_rfm_serving.errors import RfmError, ScheduleError
from ros2_rfm_serving.factory import Catalogue, Factory, RobotEntry
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.scheduler import ActiveFleet, PlanJob, estimates, rebuilt, resumed, start_fleet
from ros2_rfm_serving.scheduler.plan_service import refit_by
from ros2_rfm_serving.simulation.trial import virtual_time_trial
from ros2_rfm_serving.types import Schedule

GIVEN = "the schedule of its snapshot is taken as it is: what it was made from was not recorded"


class SchedulerReplay:
    """Implementation of `audit.replay.Replayer` for schedulers."""

    kinds: ClassVar = frozenset({PLAN})

    def __init__(self, profiles: Path) -> None:
        """Load the profiles from the folder that the factory was planned with."""
        self.notes: list[str] = []
        """Information for the user."""
        self._folder = profiles
        self._profile, self._catalogue = load_profiles(profiles), Catalogue.load(profiles / "models.yaml")
        self._factories: dict[str, Factory] = {}
        self._fleet: ActiveFleet | None = None
        self._kept: Any = None
        """State in the form of a snapshot."""

    def restore(self, snapshot: Mapping[str, Any]) -> Mapping[str, Any]:
        """Repeat the plan from before the recording, with the inputs in the snapshot."""
        state = snapshot.get("state")
        if not isinstance(state, dict):
            raise RfmError("no factory was planned yet")
        inputs = state["inputs"]
        self._learn(state["factory"], inputs)
        begun = self._at_base(state["base"], inputs) if "base" in state else self._as_planned(inputs, state["schedule"])
        self._fleet = self._stepped(begun, state["steps"], inputs)
        self._kept = state
        if "previous" not in state:
            self.notes.append(GIVEN)
            return {}
        return {"schedule": codec.plain(self._made(inputs, _schedule(state["previous"])).schedule)}

    def snapshot(self) -> Mapping[str, Any]:
        return {"state": self._kept}

    def feed(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._changed(record["steps"]) if record["how"] == CHANGED else self._planned(record)

    # --- parts ---

    def _changed(self, steps: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        assert self._fleet is not None
        self._fleet = self._stepped(self._fleet, steps, self._kept["inputs"])
        if is_rebased(steps):
            self._kept = {**self._kept, "base": base_of(self._fleet), "steps": []}
        else:
            self._kept = {**self._kept, "steps": [*self._kept["steps"], *steps]}
        return {"schedule": codec.plain(self._fleet.schedule)}

    def _stepped(self, fleet: ActiveFleet, steps: Sequence[Mapping[str, Any]], inputs: Mapping[str, Any]) -> ActiveFleet:
        """Return the fleet after some steps. Raises: `ScheduleError` when a step is impossible."""
        return stepped(fleet, steps, self._factories[inputs["factory_hash"]], refit_by(self._profile, self._catalogue))

    def _planned(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        inputs = record["inputs"]
        if "factory" in record:
            self._learn(record["factory"], inputs)
        fleet = self._again(inputs, record)
        if record["published"]:
            beside = self._fleet.schedule if self._fleet is not None and inputs["previous_epoch"] else None
            self._fleet = fleet
            self._kept = {
                "factory": self._kept["factory"] if "factory" not in record else record["factory"],
                "inputs": inputs,
                "previous": codec.plain(beside),
                "schedule": codec.plain(fleet.schedule),
                "steps": [],
            }
        return {"schedule": codec.plain(fleet.schedule), "inputs_hash": hashed(inputs)}

    def _again(self, inputs: Mapping[str, Any], record: Mapping[str, Any]) -> ActiveFleet:
        """Repeat a plan beside the active schedule. Raises: `RfmError` when another schedule is active, or planning fails."""
        previous = self._fleet.schedule if self._fleet is not None and inputs["previous_epoch"] else None
        if previous is not None and previous.epoch != inputs["previous_epoch"]:
            what = "begun in the background" if record["how"] == BACKGROUND else "made"
            raise RfmError(f"it was {what} beside schedule {inputs['previous_epoch']}, and {previous.epoch} is in force")
        return self._made(inputs, previous)

    def _made(self, inputs: Mapping[str, Any], previous: Schedule | None) -> ActiveFleet:
        """Return the fleet of a repeated plan. Raises: `RfmError` when planning fails."""
        if found := _schedule(inputs.get("active_schedule")):
            return self._resumed(inputs, found)
        return start_fleet(
            self._factories[inputs["factory_hash"]],
            robots_of(inputs),
            self._profile,
            self._catalogue,
            epoch=inputs["previous_epoch"] + 1,
            previous=previous,
            policy=inputs["policy"],
            seen=estimates.from_json(inputs["estimates"]),
            effort=inputs["effort"],
            trial=virtual_time_trial(self._catalogue, self._profile),
        )

    def _resumed(self, inputs: Mapping[str, Any], found: Schedule) -> ActiveFleet:
        """Return the fleet that was resumed from a predecessor's schedule. Raises: `RfmError` when this fails."""
        factory, robots = self._factories[inputs["factory_hash"]], tuple(robots_of(inputs))
        order = PlanJob(factory=factory, robots=robots, policy=inputs["policy"])
        return resumed(order, found, self._profile, self._catalogue)[0].fleet

    def _as_planned(self, inputs: Mapping[str, Any], schedule: Any) -> ActiveFleet:
        """Return the fleet of a schedule without planning. Raises: `RfmError` when the schedule or its factory is missing."""
        found = _schedule(schedule)
        if found is None:
            raise RfmError("a plan without a schedule")
        factory = self._factories.get(inputs["factory_hash"])
        if factory is None:
            raise RfmError("its factory is not in the recording")
        seen_then = estimates.from_json(inputs["estimates"])
        return rebuilt(factory, found, robots_of(inputs), self._profile, self._catalogue, seen_then)

    def _at_base(self, base: Mapping[str, Any], inputs: Mapping[str, Any]) -> ActiveFleet:
        """Return the rebuilt fleet in a snapshot. Raises: `RfmError` without a schedule."""
        found = _schedule(base["schedule"])
        if found is None:
            raise RfmError("a base without a schedule")
        one_each = [RobotEntry(name=task, task=task, index=0) for task in base["tasks"]]
        factory, seen_then = self._factories[inputs["factory_hash"]], estimates.from_json(base["estimates"])
        empty = rebuilt(factory, replace(found, routes=()), one_each, self._profile, self._catalogue, seen_then)
        return empty.under(found, robots_of(base), base["standbys"]).owing(base["action_rates_hz"])

    def _learn(self, factory: Any, inputs: Mapping[str, Any]) -> None:
        """Add a recorded factory. Raises: `RfmError` when it, or its profiles, are not those of the plan."""
        if hashed(factory) != inputs["factory_hash"]:
            raise ScheduleError("the factory is not the one that was planned for")
        found = Factory.model_validate(codec.value(factory))
        if inputs["profiles_hash"] != profiles_hash(self._folder, models_of(found)):
            raise ScheduleError(f"it was planned with other profiles than those in {self._folder}: name the folder with --profiles")
        self._factories[inputs["factory_hash"]] = found


def _schedule(found: Any) -> Schedule | None:
    value = codec.value(found)
    return value if isinstance(value, Schedule) else None


def robots_of(inputs: Mapping[str, Any]) -> list[RobotEntry]:
    return [RobotEntry(name=name, task=task, index=index) for name, task, index in inputs["robots"]]
