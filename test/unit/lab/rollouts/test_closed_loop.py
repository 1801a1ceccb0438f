"""Brain, server and the embedded policy around an arm in lockstep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.benchmarks.rtc import run as bench_rtc
from lab.rollouts.closed_loop import Trial, run_trials
from ros2_rfm_serving.engines.embedded.engine import load_embedded
from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.robot.chunk_validation import ChunkValidatorConfig, ChunkValidatorMode
from ros2_rfm_serving.types import PipelineConfig
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


def test_a_pipelined_robot_gets_a_chunk_per_frame_and_reaches_its_goal(repository: Path) -> None:
    engine = load_embedded("rfm/metaworld-flow", repository / "models" / "metaworld_flow")
    pipelining = PipelineConfig(pp_generation=2, alpha=1.0)
    config = replace(bench_rtc.config_of("default"), execution_horizon=2, pipelining=pipelining)
    words = TASKS["reach"].instructions[0]
    with metaworld_arm("reach") as arm:
        (trial,) = run_trials(arm, engine, config, words, SEEDS, delay_steps=1)
    assert trial.success and trial.idle_steps == 0
    assert trial.first_chunk_steps == 2 * (pipelining.depth - 1) + 1, "its frames, and the last one's delay"


REFUSE, EACH = ChunkValidatorMode.REFUSE, (1.5,) * 4
GATE = ChunkValidatorConfig(
    jump=REFUSE,
    max_jump=(2.0,) * 4,
    velocity=REFUSE,
    max_velocity=EACH,
    acceleration=REFUSE,
    max_acceleration=(50.0,) * 4,
    jerk=REFUSE,
    max_jerk=(1600.0,) * 4,
    workspace=REFUSE,
    workspace_lower=(-1.5,) * 4,
    workspace_upper=EACH,
    statistics=REFUSE,
)
"""Of displacements between -1 and 1, at 20 per second; the statistics are those of the bundle."""


@pytest.mark.parametrize(("deviations", "passes"), [(8.0, True), (0.5, False)])
def test_the_shipped_policy_passes_its_own_gate(repository: Path, deviations: float, passes: bool) -> None:
    engine = load_embedded("rfm/metaworld-flow", repository / "models" / "metaworld_flow")
    config = replace(bench_rtc.config_of("default"), gate=replace(GATE, max_deviations=deviations))
    words = TASKS["reach"].instructions[0]
    with metaworld_arm("reach") as arm:
        (trial,) = run_trials(arm, engine, config, words, SEEDS, delay_steps=4, max_steps=100 if passes else 20)
    assert trial.success == passes and (trial.idle_steps == 0 if passes else trial.first_chunk_steps == 20)


def test_a_factory_of_the_benchmark_is_the_shipped_one_in_a_mode_and_behind_a_delay(repository: Path, tmp_path: Path) -> None:
    factory = load_factory(
        bench_rtc.write_factory(tmp_path, repository / "config", "naive", 4, bench_rtc.Setting(transport_ms=15.0))
    )
    robot = (tmp_path / "robot.yaml").read_text()
    assert len(factory.robots) == len(TASKS) and all(task.robot == str(tmp_path / "robot.yaml") for task in factory.tasks.values())
    assert "conditioning: none" in robot and "faults: delay_ms=80" in robot
