"""A scheduler plans once more what it planned, from any snapshot on; and what it would not have planned is found."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from ros2_rfm_serving.audit.chain import Page
from ros2_rfm_serving.audit.replay import Replayed, brains, replay
from ros2_rfm_serving.audit.schedulers.book import profiles_hash
from ros2_rfm_serving.audit.schedulers.replay import GIVEN, SchedulerReplay
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.scheduler import schedule_state
from ros2_rfm_serving.scheduler.active_fleet import ActiveFleet
from ros2_rfm_serving.scheduler.admission import LOOKS
from ros2_rfm_serving.scheduler.estimates import FactoryEstimates, NetworkDelay
from ros2_rfm_serving.scheduler.estimation import EstimateChange
from ros2_rfm_serving.scheduler.plan_service import refit_by
from test.unit.scheduler.test_in_force import FACTORY, Running

Records = list[dict[str, Any]]
SIGHTS = (
    (FactoryEstimates(paces={"server_2": 1.3}, cycles_s={"arm": 0.3}), (), ()),
    (FactoryEstimates(lost=("server_2",), travels={"arm": NetworkDelay(mean_s=0.001, tail_s=0.002)}), ("server_2",), ()),
    (FactoryEstimates(models={("emulated/arm-policy", "EMULATED"): 0.9}), (), ("server_2",)),
)
"""(what was seen, who was lost, who was back)"""


def again(kept: Sequence[Mapping[str, Any]], profiles: Path) -> Replayed:
    page = Page(writer="scheduler", run=1, first=kept[0]["n"], previous="", lines=tuple(map(orjson.dumps, kept)))
    (result,) = {id(one): one for one in replay([page], {"scheduler": brains(lambda: SchedulerReplay(profiles))})}.values()
    return result


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Records:
    """Robots come, go, change their task and do not fit; other descriptors come; somebody else begins to listen in between."""
    folder = tmp_path_factory.mktemp("lived")
    running = Running(folder, repository / "config" / "profiles")
    running.kept.listen()
    running.fleet.admit("late", "arm")
    running.plan_what_is_wanted()
    running.fleet.admit("late", "wrist")
    running.fleet.admit("other", "wrist")
    running.plan_what_is_wanted()
    running.kept.listen()
    running.fleet.release("late")
    running.says("guest", "wrist")
    running.fleet.settle()
    running.plan_what_is_wanted()
    larger = folder / "larger.yaml"
    larger.write_text(FACTORY.replace("num_robots: 2", "num_robots: 3"))
    running.replan(larger)
    running.plan_what_is_wanted()
    for seen, lost, back in SIGHTS:
        running.fleet.see(EstimateChange(seen, lost, back, "statuses said so"), refit_by(running.profile, running.catalogue))
        running.plan_what_is_wanted()
    running.roster.release("nobody")
    with pytest.raises(RfmError):
        running.fleet.release("nobody else")
    running.kept.listen()
    running.fleet.release("arm_2")
    running.kept.book.person("release 'arm_2'", f"schedule {running.fleet.epoch}", True)
    return running.kept.records()


@pytest.fixture
def profiles(repository: Path) -> Path:
    return repository / "config" / "profiles"


@pytest.mark.patient
def test_plans_are_made_again(lived: Records, profiles: Path) -> None:
    how = {record["how"] for record in lived if record["kind"] == "plan"}
    result = again(lived, profiles)
    assert result.difference is None and not result.refused and not result.notes, result
    assert how == {"planned", "changed", "background"} and result.snapshots == 2
    assert result.decisions == 1 + sum(record["kind"] == "plan" for record in lived) >= 7  # 1: made before anybody listened
    for first in (record["n"] for record in lived if record["kind"] == "snapshot"):
        later = again(lived[first:], profiles)
        assert later.difference is None and not later.refused and not later.skipped, later


def from_its(snapshot: int, lived: Records, **brain: Any) -> Records:
    """As if recorded from one of its snapshots on, in which something else stands."""
    (first,) = [at for at, record in enumerate(lived) if record["kind"] == "snapshot"][snapshot:][:1]
    changed = copy.deepcopy(lived[first:])
    changed[0]["state"] |= brain
    return changed


@pytest.mark.parametrize("snapshot", [0, 1, 2])
def test_a_plan_that_was_made_before_anybody_listened_is_made_again(lived: Records, profiles: Path, snapshot: int) -> None:
    (brain,) = [record["state"] for record in lived if record["kind"] == "snapshot"][snapshot:][:1]
    kept = from_its(snapshot, lived, schedule={**brain["schedule"], "predicted_actions_hz": 1.5})
    result = again(kept, profiles)
    assert result.difference is not None and (result.at["kind"], result.at["n"]) == ("snapshot", kept[0]["n"])
    assert result.difference.field == "schedule.predicted_actions_hz" and result.difference.recorded == 1.5


def test_room_that_was_found_elsewhere_is_found_again(tmp_path: Path, profiles: Path) -> None:
    """At a glance, and by others who make room: whoever reads the book looks as often as was looked then."""
    running = Running(tmp_path, profiles)
    running.kept.listen()
    orders = [running.fleet.admit(f"late_{number}", "arm") for number in range(5)]
    running.plan_what_is_wanted()
    lived = running.kept.records()
    steps = [step for record in lived if record.get("how") == "changed" for step in record["steps"]]
    assert all(isinstance(order.answer, int) for order in orders) and {step["evaluations"] for step in steps} == {1, LOOKS}
    result = again(lived, profiles)
    assert result.difference is None and not result.refused, result


def test_a_snapshot_whose_plan_cannot_be_made_again_is_taken_and_said(lived: Records, profiles: Path) -> None:
    older = from_its(0, lived)[:1]
    del older[0]["state"]["previous"]
    result = again(older, profiles)
    assert not result.refused and not result.decisions and result.notes == [GIVEN]


@pytest.mark.parametrize("how", ["planned", "changed", "background"])
def test_a_plan_that_is_another_is_found(lived: Records, profiles: Path, how: str) -> None:
    changed = copy.deepcopy(lived)
    record = next(r for r in changed if r.get("how") == how)
    record["schedule"]["routes"][0]["server"] = "nobody"
    result = again(changed, profiles)
    assert result.difference is not None and result.at["n"] == record["n"] and result.difference.recorded == "nobody"


def test_inputs_that_are_others_are_found(lived: Records, profiles: Path) -> None:
    for key, value in {"policy": "baseline1", "robots": [["arm_1", "arm", 0]]}.items():
        changed = copy.deepcopy(lived)
        next(r for r in changed if r.get("how") == "planned")["inputs"][key] = value
        result = again(changed, profiles)
        assert result.difference is not None or result.refused


def test_a_folder_may_learn_of_other_models(tmp_path: Path, profiles: Path) -> None:
    """A catalogue that had grown refused every recording of before."""
    folder, models = Path(shutil.copytree(profiles, tmp_path / "profiles")), frozenset({"emulated/arm-policy"})
    before, figures, catalogue = profiles_hash(folder, models), folder / "emulated.csv", folder / "models.yaml"
    model, text = "  emulated/arm-policy:\n", catalogue.read_text(encoding="utf-8")
    row = next(row for row in figures.read_text(encoding="utf-8").splitlines() if row.startswith("emulated/arm-policy,"))
    catalogue.write_text(text.replace(model, f"  another:\n    engine: emulated\n{model}"), encoding="utf-8")
    (folder / "more.csv").write_text(row.replace("arm-policy", "another"), encoding="utf-8")
    assert catalogue.read_text(encoding="utf-8") != text and profiles_hash(folder, models) == before
    catalogue.write_text(text.replace(model, f"{model}    of: use\n"), encoding="utf-8")
    assert profiles_hash(folder, models) != before
    catalogue.write_text(text, encoding="utf-8")
    (folder / "more.csv").write_text(row, encoding="utf-8")
    assert profiles_hash(folder, models) != before


def test_another_code_is_found(lived: Records, profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    admit = ActiveFleet.admit
    monkeypatch.setattr(ActiveFleet, "admit", lambda self, robot: admit(self, robot).again())
    result = again(lived, profiles)
    assert result.difference is not None and result.at["kind"] == "plan"


def test_what_was_seen_counts(lived: Records, profiles: Path) -> None:
    """Another pace, another server lost: other schedules."""
    steps = [step for record in lived if record.get("how") == "changed" for step in record["steps"] if step["step"] == "observe"]
    assert len(steps) == len(SIGHTS) and steps[1]["lost_servers"] == ["server_2"]
    changed = copy.deepcopy(lived)
    record = next(r for r in changed if r.get("how") == "changed" and r["steps"][0].get("lost_servers"))
    record["steps"][0] |= {"estimates": {"lost_servers": ["server_1"]}, "lost_servers": ["server_1"]}
    result = again(changed, profiles)
    assert result.difference is not None and result.at["n"] == record["n"]


def test_who_has_again_whom_it_had_is_known_to_the_book(tmp_path: Path, profiles: Path) -> None:
    """It was decided by looks at queues that whoever reads the book may not have had: it says what was decided."""
    running = Running(tmp_path, profiles)
    running.kept.listen()
    lost = running.fleet.fleet.schedule.routes[0].server
    refit = refit_by(running.profile, running.catalogue)
    for seen, gone, back in ((FactoryEstimates(lost=(lost,)), (lost,), ()), (FactoryEstimates(), (), (lost,))):
        running.fleet.see(EstimateChange(seen, gone, back, "statuses said so"), refit)
    lived = running.kept.records()
    steps = [step for record in lived if record.get("how") == "changed" for step in record["steps"] if step["step"] == "observe"]
    result = again(lived, profiles)
    assert result.difference is None and not result.refused, result
    assert [step["restores_assignments"] for step in steps] == [False, True] and running.fleet.fleet.restored == {lost}
    record = next(r for r in lived if r.get("how") == "changed" and r["steps"][0]["restores_assignments"])
    record["steps"][0]["restores_assignments"] = False
    result = again(lived, profiles)
    assert result.difference is not None and result.at["n"] == record["n"]


def test_a_book_without_a_plan_does_not_grow(tmp_path: Path, profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Robots came and went for weeks, and every snapshot had all of them."""
    monkeypatch.setattr(schedule_state, "MOST_CHANGES", 7)
    running = Running(tmp_path, profiles)
    running.kept.listen()
    slow = EstimateChange(FactoryEstimates(paces={"server_2": 1.3}), (), (), "statuses said so")
    running.fleet.see(slow, refit_by(running.profile, running.catalogue))
    for number in range(24):
        running.fleet.admit(f"late_{number}", "arm")
        if number >= 3:
            running.fleet.release(f"late_{number - 3}")
        if number in (9, 20):
            running.kept.listen()
    lived = running.kept.records()
    snapshots = [number for number, record in enumerate(lived) if record["kind"] == "snapshot"]
    brains_kept = [lived[number]["state"] for number in snapshots]
    assert ["base" in brain for brain in brains_kept] == [False, True, True]
    assert all(len(brain["steps"]) <= 7 for brain in brains_kept)
    for first in snapshots:
        result = again(lived[first:], profiles)
        assert result.difference is None and not result.refused and not result.notes, result
    changed = copy.deepcopy(lived[snapshots[1] :])
    changed[0]["state"]["base"]["action_rates_hz"]["arm"] *= 3
    result = again(changed, profiles)
    assert result.difference is not None or result.refused


def test_other_profiles_are_said(lived: Records, tmp_path: Path, profiles: Path) -> None:
    for file in profiles.iterdir():
        text = file.read_bytes()
        (tmp_path / file.name).write_bytes(text.replace(b",20,", b",21,") if file.suffix == ".csv" else text)
    result = again(lived, tmp_path)
    assert result.refused and any("--profiles" in note for note in result.notes)
