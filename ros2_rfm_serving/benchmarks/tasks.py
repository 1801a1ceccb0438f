"""`rfm bench tasks`: success of the policy that acts by images, task by task, beside the scripted experts'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from ros2_rfm_serving.benchmarks.console import JsonFile, console

FIRST_SEED = 100_000
"""Beyond all that training used."""
MAX_STEPS, EXECUTE = 200, 8


def tasks(
    bundle: Annotated[Path, typer.Argument(help="Folder of a policy, as `rfm train image-policy` writes it")],
    episodes: Annotated[int, typer.Option(min=1, help="Per task")] = 20,
    only: Annotated[str, typer.Option(help="Tasks, separated by commas; default: all that it was trained on")] = "",
    json_file: JsonFile = None,
) -> None:
    """Success of a policy in process, per task, on seeds that training never used, and the expert's on the same.

    Example:  rfm bench tasks models/metaworld_images --episodes 20
    """
    import torch

    from ros2_rfm_serving.engines.embedded.engine import load_embedded
    from ros2_rfm_serving.worlds.metaworld import SEEN_TASKS

    torch.set_num_threads(1)
    engine = load_embedded(bundle.name, bundle)
    names = only.split(",") if only else list(SEEN_TASKS)
    if unknown := set(names) - SEEN_TASKS.keys():
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: the tasks are {', '.join(SEEN_TASKS)}")
    table, figures = (
        Table("task", "policy", "95 % interval", "expert", "difference", "steps", "steps of the expert"),
        dict[str, Any](),
    )
    for name in names:
        found = figures[name] = _task(engine, name, list(range(FIRST_SEED, FIRST_SEED + episodes)))
        (low, high), wins, expert = found["interval_95"], found["successes"], found["expert_successes"]
        points = f"{100 * (wins - expert) / episodes:+.0f} points"
        steps = (f"{found['mean_steps']:.0f}", f"{found['expert_mean_steps']:.0f}")
        table.add_row(name, f"{wins}/{episodes}", f"{low:.0%} - {high:.0%}", f"{expert}/{episodes}", points, *steps)
    console.print(table)
    if json_file:
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _task(engine: Any, name: str, seeds: list[int]) -> dict[str, Any]:
    from ros2_rfm_serving.monitoring.board import wilson_interval
    from ros2_rfm_serving.worlds.metaworld import metaworld_arm
    from ros2_rfm_serving.worlds.rollout import run_episodes

    with metaworld_arm(name) as arm:
        ended = run_episodes(arm, engine, arm.instructions[0], seeds, execute=EXECUTE, max_steps=MAX_STEPS)
        expert = [took for seed in seeds if (took := _expert_steps(arm, seed)) is not None]
    steps = [episode.steps for episode in ended if episode.success]
    return {
        "successes": len(steps),
        "episodes": len(seeds),
        "interval_95": wilson_interval(len(steps), len(seeds)),
        "mean_steps": sum(steps) / max(1, len(steps)),
        "expert_successes": len(expert),
        "expert_mean_steps": sum(expert) / max(1, len(expert)),
    }


def _expert_steps(arm: Any, seed: int) -> int | None:
    """To success."""
    arm.reset(seed)
    expert = arm.expert()
    for step in range(1, MAX_STEPS + 1):
        arm.step(expert.get_action(arm.state.astype(np.float64)))
        if arm.success:
            return step
    return None
