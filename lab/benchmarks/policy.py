"""`rfm bench policy`: success of the embedded policy, served and in process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ros2_rfm_serving.operate.engines import load_engine

if TYPE_CHECKING:
    from ros2_rfm_serving.operate.run import Outcome
from lab.benchmarks.console import JsonFile, console


def policy(
    episodes: Annotated[int, typer.Option(min=1, help="Per task")] = 50,
    factory: Annotated[Path | None, typer.Option(help="Default: the shipped factory_evaluation.yaml")] = None,
    domain: Annotated[int, typer.Option(help="ROS domain of the measurement")] = 78,
    json_file: JsonFile = None,
) -> None:
    """Success of the embedded policy, served over DDS and called in process, on the same seeds.

    Example:  rfm bench policy --episodes 50
    """
    from ros2_rfm_serving.factory import load_factory
    from ros2_rfm_serving.monitoring.board import wilson_interval
    from ros2_rfm_serving.ros.node.runtime import share

    descriptor = load_factory(factory or share() / "config" / "factory_evaluation.yaml")
    served = _served_success(descriptor, episodes, domain)
    table = Table(
        "task", "served", "95 % interval", "in process", "95 % interval", "difference", "steps served", "steps in process"
    )
    figures: dict[str, Any] = {}
    for robot in descriptor.robots:
        task = descriptor.tasks[robot.task]
        assert task.world is not None
        here = _in_process(task.world.task, task.components["system1"].prompt, task.world.seed, episodes)
        there = served.board.by_task()[task.world.task][:episodes]
        wins = (sum(s.success for s in there), sum(e.success for e in here))
        rates = (wins[0] / len(there), wins[1] / len(here))
        intervals = (wilson_interval(wins[0], len(there)), wilson_interval(wins[1], len(here)))
        steps = [sum(e.steps for e in group if e.success) / max(1, n) for group, n in ((there, wins[0]), (here, wins[1]))]
        table.add_row(
            task.world.task,
            f"{wins[0]}/{len(there)}",
            f"{intervals[0][0]:.0%} - {intervals[0][1]:.0%}",
            f"{wins[1]}/{len(here)}",
            f"{intervals[1][0]:.0%} - {intervals[1][1]:.0%}",
            f"{100 * (rates[0] - rates[1]):+.0f} points",
            f"{steps[0]:.0f}",
            f"{steps[1]:.0f}",
        )
        figures[task.world.task] = {
            "served": {"successes": wins[0], "episodes": len(there), "interval_95": intervals[0], "mean_steps": steps[0]},
            "in_process": {"successes": wins[1], "episodes": len(here), "interval_95": intervals[1], "mean_steps": steps[1]},
            "first_seed": task.world.seed,
        }
    console.print(table)
    if json_file:
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _in_process(task: str, instruction: str, seed: int, episodes: int) -> list[Any]:
    from ros2_rfm_serving.worlds.metaworld import metaworld_arm
    from ros2_rfm_serving.worlds.rollout import run_episodes

    with metaworld_arm(task) as arm:
        return run_episodes(arm, load_engine("rfm/metaworld-flow", 1), instruction, list(range(seed, seed + episodes)))


def _served_success(descriptor: Any, episodes: int, domain: int) -> Outcome:
    from ros2_rfm_serving.operate.run import run_factory
    from ros2_rfm_serving.operate.running import Options

    options = Options(
        episodes=episodes, domain=domain, logs=Path("logs") / "bench_policy", work={"episodes": 0, "end_on_score": True}
    )
    return run_factory(descriptor, options)
