"""`rfm bench continuous` in virtual time: the same workload in both ways of batching."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.benchmarks.continuous import virtual
from lab.benchmarks.continuous.plot import draw
from lab.benchmarks.continuous.report import largest, table
from ros2_rfm_serving.operate.capacity import Question
from ros2_rfm_serving.types import SYSTEM1

SETTING = virtual.Setting(seconds=3.0, seed=1, profiles=None)


@pytest.mark.parametrize("batching", virtual.BATCHINGS)
def test_a_fleet_is_planned_and_run_as_asked(batching: str) -> None:
    row = virtual.row("p1", batching, virtual.inputs_of("p1", batching, SETTING, 8), SETTING)
    assert (row.batching, row.num_robots, row.attainment) == (batching, 8, 1.0)
    assert row.goodput == pytest.approx(row.predicted, rel=0.1) and 0.04 < row.p50_s <= row.p99_s < 0.2


def test_another_action_model_takes_the_place_of_the_workloads_own() -> None:
    inputs = virtual.inputs_of("p4", "continuous", replace(SETTING, system1="physical-intelligence/pi0.5"), 32)
    (task,) = inputs.factory.tasks.values()
    assert task.components[SYSTEM1].model == "physical-intelligence/pi0.5" and len(inputs.factory.robots) == 32
    assert inputs.factory.continuous == {"NVIDIA H200"}


def test_the_largest_fleet_is_where_the_simulation_ends_to_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    for planned, limit in ((10, 13), (10, 7), (4, 0)):
        monkeypatch.setattr(Question, "robots", lambda self, say, planned=planned: type("A", (), {"found": planned}))
        monkeypatch.setattr(virtual, "_holds", lambda number, limit=limit, **of: 0 < number <= limit)
        found = virtual.most("p1", "fixed", 2.5, SETTING)
        assert found.planned == planned and found.simulated == limit - (limit - planned) % virtual.STEP
    assert largest([found]).row_count == 1


def test_what_was_found_is_shown_and_drawn(tmp_path: Path) -> None:
    row = virtual.Row(
        workload="p1", batching="fixed", num_robots=8, gpus="8", goodput=30.0, predicted=31.0, p50_s=0.05, p99_s=0.1,
        predicted_p99_s=0.1, attainment=1.0,
    )  # fmt: skip
    found = [row, replace(row, num_robots=16), replace(row, batching="continuous")]
    assert table(found).row_count == 3
    draw(found, tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
