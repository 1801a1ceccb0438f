"""Brain, server and the embedded policy around an arm in lockstep."""

from __future__ import annotations

from pathlib import Path

import pytest

from ros2_rfm_serving.benchmarks.rtc import run as bench_rtc
from ros2_rfm_serving.engines.embedded.engine import load_embedded
from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.worlds.closed_loop import Trial, run_trials
from ros2_rfm_serving.worlds.metaworld import TASKS, metaworld_arm

SEEDS = (11,)


@pytest.fixture(scope="module")
def trials(repository: Path) -> dict[str, list[Trial]]:
    engine = load_embedded("rfm/metaworld-flow", repository / "models" / "metaworld_flow")
    with metaworld_arm("reach") as arm:
        return {
            mode: run_trials(arm, engine, bench_rtc.config_of(mode), TASKS["reach"].instructions[0], SEEDS, delay_steps=4)
            for mode in ("synchronous", "naive", "default")
        }


def test_the_default_mode_never_stands_still_and_eases_into_its_chunks(trials: dict[str, list[Trial]]) -> None:
    assert all(trial.success and trial.idle_steps == 0 for trial in trials["default"])
    assert all(trial.first_chunk_steps == 4 for trial in trials["default"]), "as long as its first chunk takes"
    seams = {mode: sum(trial.seam_jump for trial in of_mode) for mode, of_mode in trials.items()}
    assert seams["default"] < seams["naive"]


def test_a_robot_that_waits_stands_still_for_every_chunk(trials: dict[str, list[Trial]]) -> None:
    for trial in trials["synchronous"]:
        assert trial.idle_steps >= 4 * ((trial.steps - 4) // 12 - 1) > 0


def test_a_factory_of_the_benchmark_is_the_shipped_one_in_a_mode_and_behind_a_delay(repository: Path, tmp_path: Path) -> None:
    factory = load_factory(
        bench_rtc.write_factory(tmp_path, repository / "config", "naive", 4, bench_rtc.Setting(transport_ms=15.0))
    )
    robot = (tmp_path / "robot.yaml").read_text()
    assert len(factory.robots) == len(TASKS) and all(task.robot == str(tmp_path / "robot.yaml") for task in factory.tasks.values())
    assert "conditioning: none" in robot and "faults: delay_ms=80" in robot
