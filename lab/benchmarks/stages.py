"""`rfm bench stages`: the two-stage task with all four components, in lockstep."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.table import Table

from lab.benchmarks.console import JsonFile, console
from ros2_rfm_serving.operate.engines import load_engine
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.types import SYSTEM1, TaskOutcome

if TYPE_CHECKING:
    from lab.rollouts.staged_loop import StagedTrial
    from ros2_rfm_serving.factory import TaskEntry
    from ros2_rfm_serving.robot import RobotConfig

DONE = TaskOutcome.NONE.name


def stages(
    episodes: Annotated[int, typer.Option(min=1)] = 40,
    delay: Annotated[int, typer.Option(min=0, help="From a request to its answer, control steps")] = 3,
    factory: Annotated[Path | None, typer.Option(help="Default: the shipped factory_full.yaml")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the first episode; default: the factory's own")] = None,
    json_file: JsonFile = None,
) -> None:
    """Success of a task of two stages, split by System 2 and ended by the monitor, with safety asked meanwhile; no network.

    Example:  rfm bench stages --episodes 40
    """
    from lab.rollouts.staged_loop import run_staged_trials
    from ros2_rfm_serving.factory import load_factory
    from ros2_rfm_serving.worlds.metaworld import metaworld_arm

    descriptor = load_factory(factory or shipped("config", "factory_full.yaml"))
    task = descriptor.tasks[descriptor.robots[0].task]
    assert task.world is not None
    first = task.world.seed if seed is None else seed
    parameters = _parameters(task)
    with metaworld_arm(task.world.task) as arm:
        trials = run_staged_trials(
            arm,
            {name: load_engine(component.model) for name, component in task.components.items()},
            config_of(task, parameters),
            task.components[SYSTEM1].prompt,
            range(first, first + episodes),
            rates_hz={name: component.freq_hz for name, component in task.components.items() if component.freq_hz},
            delay_steps=delay,
            budget_s=parameters["default_budget_s"],
            progress=_say,
        )
    _print(trials, delay)
    if json_file:
        json_file.write_text(json.dumps([asdict(trial) for trial in trials], indent=1) + "\n", encoding="utf-8")


def _say(trial: StagedTrial) -> None:
    done = "done" if trial.success else f"not done ({'second' if trial.visited else 'first'} stage)"
    console.print(f"seed {trial.seed}: {done} after {trial.steps} control steps, {trial.outcome}")


def _parameters(task: TaskEntry) -> dict[str, Any]:
    file = shipped("config", "robots", task.robot)
    parameters: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))["/**"]["ros__parameters"]
    return parameters


def config_of(task: TaskEntry, parameters: dict[str, Any]) -> RobotConfig:
    """Return the robot of a task as its node would read it, with one attempt."""
    from lab.rollouts.closed_loop import ROBOT
    from ros2_rfm_serving.factory.settings import robot_settings
    from ros2_rfm_serving.robot import RobotConfig
    from ros2_rfm_serving.robot.config import TaskPolicy
    from ros2_rfm_serving.types import Conditioning

    declared, rate_hz = robot_settings(task), parameters["control_rate_hz"]
    return RobotConfig(
        name=ROBOT,
        action_names=tuple(parameters["action_names"]),
        cameras=tuple(parameters["cameras"]),
        state_size=parameters["state_size"],
        control_rate_hz=rate_hz,
        execution_horizon=declared.execution_horizon(rate_hz),
        conditioning=Conditioning(parameters["conditioning"]),
        blend_steps=parameters["blend_steps"],
        verdict_votes=parameters["verdict_votes"],
        max_action_age_s=parameters["max_action_age_s"],
        prompts=dict(declared.prompts),
        calls_per_action=dict(declared.calls_per_action),
        policy=TaskPolicy(
            fallbacks=dict(declared.fallbacks),
            max_consecutive_safety_replan=declared.max_consecutive_safety_replan,
            max_consecutive_slo_violation=declared.max_consecutive_slo_violation,
        ),
    )


def _print(trials: list[StagedTrial], delay: int) -> None:
    from ros2_rfm_serving.monitoring.board import wilson_interval

    table = Table("", "episodes", "share", "95 % interval", title=f"{len(trials)} episodes, {delay} control steps to an answer")
    counts = {
        "first stage done": [trial.visited for trial in trials],
        "both stages done": [trial.success for trial in trials],
        "the monitor said so": [trial.success and trial.outcome == DONE for trial in trials],
        "said to be done, and was not": [trial.outcome == DONE and not trial.success for trial in trials],
        "said to have failed": [trial.outcome == TaskOutcome.JUDGED_FAILED.name for trial in trials],
        "stopped by a false 'unsafe'": [trial.unsafe > 0 for trial in trials],
    }
    for name, flags in counts.items():
        low, high = wilson_interval(sum(flags), len(flags))
        table.add_row(name, f"{sum(flags)}/{len(flags)}", f"{sum(flags) / len(flags):.1%}", f"{low:.0%} - {high:.0%}")
    console.print(table)
    steps = sorted(trial.steps for trial in trials if trial.success)
    if steps:
        console.print(f"control steps to success: median {steps[len(steps) // 2]}, longest {steps[-1]}")
