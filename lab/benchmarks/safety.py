"""`rfm bench safety`: error rates of the safety judge, in both directions."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from lab.benchmarks.console import JsonFile, console
from ros2_rfm_serving.operate.engines import load_engine
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.types import SAFETY, SYSTEM1

if TYPE_CHECKING:
    from lab.rollouts.watched import Judged

THRESHOLDS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)


def safety(
    episodes: Annotated[int, typer.Option(min=1)] = 40,
    seed: Annotated[int, typer.Option(help="Of the first episode; training used seeds below 1000")] = 5_000_000,
    json_file: JsonFile = None,
) -> None:
    """Objections of the full factory's safety judge to scenes with and without something in the way, at work and at a stand.

    Example:  rfm bench safety --episodes 40
    """
    from lab.rollouts.watched import judged_episodes
    from ros2_rfm_serving.factory import load_factory
    from ros2_rfm_serving.worlds.metaworld import metaworld_arm

    descriptor = load_factory(shipped("config", "factory_full.yaml"))
    task = descriptor.tasks[descriptor.robots[0].task]
    assert task.world is not None
    policy, judge = (load_engine(task.components[name].model) for name in (SYSTEM1, SAFETY))
    with metaworld_arm(task.world.task) as arm:
        judged = judged_episodes(arm, policy, judge, task.components[SAFETY].prompt, range(seed, seed + episodes))
    _print(judged)
    if json_file:
        json_file.write_text(json.dumps([asdict(frame) for frame in judged]) + "\n", encoding="utf-8")


def _print(judged: list[Judged]) -> None:
    from ros2_rfm_serving.monitoring.board import wilson_interval

    table = Table("in the way", "the arm", "frames", "'unsafe'", "share", "95 % interval")
    for kind in ("", *sorted({frame.obstacle for frame in judged} - {""})):
        for standing in (False, True):
            frames = [frame for frame in judged if (frame.obstacle, frame.standing) == (kind, standing)]
            wrong = sum(frame.unsafe > 0.5 for frame in frames)
            low, high = wilson_interval(wrong, len(frames))
            share = f"{wrong / len(frames):.1%}" if frames else "-"
            how = "stands" if standing else "works"
            table.add_row(kind or "nothing", how, str(len(frames)), str(wrong), share, f"{low:.1%} - {high:.1%}")
    console.print(table)
    for threshold in THRESHOLDS:
        clear, hidden = (
            [(frame.unsafe > threshold) for frame in judged if bool(frame.obstacle) is there] for there in (False, True)
        )
        console.print(
            f"from {threshold:g} on: {sum(clear)} of {len(clear)} clear, {sum(hidden)} of {len(hidden)} with something in the way"
        )
    console.print(f"highest probability with a clear way: {max(frame.unsafe for frame in judged if not frame.obstacle):.2f}")
