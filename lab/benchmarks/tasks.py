"""`rfm bench tasks`: success of the policy that acts by images, task by task, beside the scripted experts'."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table

from lab.benchmarks.console import JsonFile, console
from ros2_rfm_serving.engines.base import Engine

if TYPE_CHECKING:
    from lab.rollouts.closed_loop import Trial
    from ros2_rfm_serving.worlds.metaworld import MetaworldArm
    from ros2_rfm_serving.worlds.rollout import Episode

FIRST_SEED = 100_000
"""First seed, beyond all that training used."""
MAX_STEPS, EXECUTE = 200, 8
ROBOT, HORIZON = "metaworld_images.yaml", 4
"""Robot and horizon under an inference delay, as in config/factory_images.yaml."""


def tasks(
    bundle: Annotated[
        Path | None, typer.Argument(help="Folder of a policy, as `rfm train image-policy` writes it; without: the experts alone")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Per task")] = 20,
    only: Annotated[str, typer.Option(help="Tasks, separated by commas; default: all that it was trained on")] = "",
    still: Annotated[
        bool, typer.Option("--still", help="The policy sees one picture of another scene for ever: what images are for")
    ] = False,
    delay: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Control steps from a request to its chunk, in lockstep; the shipped robot executes the one before meanwhile. "
            "Without: it stands still",
            show_default=False,
        ),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Success of a policy in process, per task, on seeds that training never used, and the expert's on the same.

    Examples:  rfm bench tasks /tmp/models/metaworld_images --episodes 20   |   rfm bench tasks models/metaworld_images --delay 4
    """
    import torch

    from ros2_rfm_serving.engines.embedded.engine import load_embedded
    from ros2_rfm_serving.worlds.metaworld import SEEN_TASKS

    torch.set_num_threads(1)
    engine = load_embedded(bundle.name, bundle) if bundle else None
    names = only.split(",") if only else list(SEEN_TASKS)
    if unknown := set(names) - SEEN_TASKS.keys():
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: the tasks are {', '.join(SEEN_TASKS)}")
    table = Table("task", *(("policy", "95 % interval", "difference", "steps") if engine else ()), "expert", "steps of the expert")
    figures: dict[str, Any] = {}
    for name in names:
        found = figures[name] = _task(engine, name, list(range(FIRST_SEED, FIRST_SEED + episodes)), delay, still=still)
        table.add_row(
            name, *_cells(found, episodes), f"{found['expert_successes']}/{episodes}", f"{found['expert_mean_steps']:.0f}"
        )
    console.print(table)
    if json_file:
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _cells(found: Mapping[str, Any], episodes: int) -> list[str]:
    """Return the cells of the policy; empty without a policy."""
    if "successes" not in found:
        return []
    wins, (low, high) = found["successes"], found["interval_95"]
    points = 100 * (wins - found["expert_successes"]) / episodes
    return [f"{wins}/{episodes}", f"{low:.0%} - {high:.0%}", f"{points:+.0f} points", f"{found['mean_steps']:.0f}"]


def _task(engine: Engine | None, name: str, seeds: list[int], delay: int | None, *, still: bool) -> dict[str, Any]:
    from ros2_rfm_serving.monitoring.board import wilson_interval
    from ros2_rfm_serving.worlds.metaworld import metaworld_arm

    found: dict[str, Any] = {"episodes": len(seeds), "first_seed": seeds[0]}
    with metaworld_arm(name) as arm:
        expert = [took for seed in seeds if (took := _expert_steps(arm, seed)) is not None]
        found |= {"expert_successes": len(expert), "expert_mean_steps": sum(expert) / max(1, len(expert))}
        if engine is None:
            return found
        if still:
            arm.reset(0)
            picture = arm.render()
            arm.render = lambda: picture  # type: ignore[method-assign]
        ended = _ended(arm, engine, seeds, delay)
    steps = [episode.steps for episode in ended if episode.success]
    interval = wilson_interval(len(steps), len(seeds))
    return found | {"successes": len(steps), "interval_95": interval, "mean_steps": sum(steps) / max(1, len(steps))}


def _ended(arm: MetaworldArm, engine: Engine, seeds: list[int], delay: int | None) -> Sequence[Episode | Trial]:
    from lab.benchmarks.shipped_robot import robot_config
    from lab.rollouts.closed_loop import run_trials
    from ros2_rfm_serving.worlds.rollout import run_episodes

    if delay is None:
        return run_episodes(arm, engine, arm.instructions[0], seeds, execute=EXECUTE, max_steps=MAX_STEPS)
    robot = robot_config(ROBOT, execution_horizon=HORIZON)
    return run_trials(arm, engine, robot, arm.instructions[0], seeds, delay_steps=delay, max_steps=MAX_STEPS)


def _expert_steps(arm: MetaworldArm, seed: int) -> int | None:
    """Return the expert's steps to success."""
    arm.reset(seed)
    expert = arm.expert()
    for step in range(1, MAX_STEPS + 1):
        arm.step(expert.get_action(arm.state.astype(np.float64)))
        if arm.success:
            return step
    return None
