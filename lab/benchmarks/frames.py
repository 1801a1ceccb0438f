"""`rfm bench frames`: requests of robots one after the other, and in frames on a public context (AURAS §4), in process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from itertools import count, islice
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from lab.benchmarks.console import JsonFile, console
from ros2_rfm_serving.operate.engines import load_engine
from ros2_rfm_serving.types import HorizonRequest, PipelineConfig

if TYPE_CHECKING:
    from ros2_rfm_serving.engines.base import Engine
    from ros2_rfm_serving.types import InferenceRequest
    from ros2_rfm_serving.worlds.metaworld import MetaworldArm
    from ros2_rfm_serving.worlds.rounds import Episode

MODEL = "rfm/metaworld-autoregressive"
FIRST_SEED = 7000
"""First seed of the worlds, which no training and no other benchmark uses."""


def frames(
    model: Annotated[str, typer.Option(help="Of the catalogue: an embedded policy that takes pipelined sessions")] = MODEL,
    robots: Annotated[int, typer.Option(min=1, help="That are timed together: in one batch, or in merged frames")] = 1,
    stages: Annotated[str, typer.Option(help="Degrees of pp_generation")] = "8,16,32",
    fetch_offset: Annotated[int, typer.Option(min=-1, max=0, help="-1: a frame generates on what the one before perceived")] = -1,
    chunks: Annotated[int, typer.Option(min=1, help="Timed chunks per execution and round")] = 60,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved repetitions: their spread is reported")] = 7,
    episodes: Annotated[int, typer.Option(min=0, help="Per task, in lockstep worlds; 0: none")] = 15,
    steps: Annotated[int, typer.Option(min=1, help="Control steps per chunk, or frame, in those")] = 4,
    json_file: JsonFile = None,
) -> None:
    """Throughput (one thread, CPU time) and success of an embedded policy: one at a time, and in frames.

    Examples:  rfm bench frames --stages 32 --episodes 0   |   rfm bench frames --model rfm/metaworld-flow --robots 8 --stages 4
    """
    import torch

    torch.set_num_threads(1)
    ways = {"one after the other": None} | {
        f"frames, {degree} stages": PipelineConfig(pp_generation=int(degree), fetch_offset=fetch_offset)
        for degree in stages.split(",")
    }
    deepest = max(way.depth for way in ways.values() if way)
    engine = load_engine(model, 1, options={"max_rows": robots * (deepest + 1)})
    times_ms = _times_ms(engine, ways, robots, chunks, rounds)
    table = Table("execution", "CPU time per chunk", "chunks/s, of the first's", "success", "95 % interval", "steps to success")
    figures: dict[str, Any] = {}
    for name, pipelining in ways.items():
        ratios = sorted(first / own for own, first in zip(times_ms[name], next(iter(times_ms.values())), strict=True))
        figures[name] = {"ms_per_chunk": times_ms[name], "throughput_ratio": ratios, **_success(model, pipelining, episodes, steps)}
        gain = f"{median(ratios):.2f} x ({ratios[0]:.2f} - {ratios[-1]:.2f})"
        table.add_row(name, f"{median(times_ms[name]):.2f} ms", gain, *_said(figures[name]))
    console.print(table)
    if json_file:
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _times_ms(
    engine: Engine, ways: dict[str, PipelineConfig | None], robots: int, chunks: int, rounds: int
) -> dict[str, list[float]]:
    """Return the CPU time per chunk of each round, which other load of the machine does not affect."""
    engine.warm_up()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, pipelining in ways.items():
            answered = _alone(engine, robots) if pipelining is None else _framed(engine, robots, pipelining)
            next(answered)  # this fills the pipeline
            began_s = time.process_time()
            sum(1 for _ in islice(answered, chunks))
            times[name].append(1e3 * (time.process_time() - began_s) / chunks)
            answered.close()
    return times


def _observations(engine: Engine) -> Callable[[int, int], InferenceRequest]:
    """Return a function of robot and number to observation."""
    import numpy as np

    from ros2_rfm_serving.engines.warmup import warmup_request

    blank, rng = warmup_request(engine.contract), np.random.default_rng(0)
    return lambda robot, n: replace(
        blank,
        id=replace(blank.id, robot=f"robot_{robot}", sequence=n),
        state=rng.standard_normal(engine.contract.state_size, np.float32),
    )


def _alone(engine: Engine, robots: int) -> Generator[None, None, None]:
    observe = _observations(engine)
    for number in count(1):
        yield from (None for _ in engine.infer([observe(robot, number) for robot in range(robots)]))


def _framed(engine: Engine, robots: int, pipelining: PipelineConfig) -> Generator[None, None, None]:
    from ros2_rfm_serving.engines.base import stepping

    served, observe = stepping(engine), _observations(engine)
    served.require_pipelining(pipelining)
    number = 0
    try:
        for number in count(1):
            new = {number * robots + robot: replace(observe(robot, number), pipelining=pipelining) for robot in range(robots)}
            for error in served.enter(new).values():
                raise error
            while ready := served.ready():
                yield from (None for _ in served.iterate(ready))
    finally:
        served.leave(range(robots * (number + 1)))


def _success(model: str, pipelining: PipelineConfig | None, episodes: int, steps: int) -> dict[str, Any]:
    if not episodes:
        return {}
    from ros2_rfm_serving.worlds.metaworld import TASKS, MetaworldArm
    from ros2_rfm_serving.worlds.rounds import ARMS_IN_FRAMES

    ended: list[Episode] = []
    for task in TASKS:
        arms = [MetaworldArm(task) for _ in range(ARMS_IN_FRAMES)]
        ended += _episodes(model, arms, task, pipelining, episodes, steps)
        for arm in arms:
            arm.close()
    won = [episode.steps for episode in ended if episode.success]
    by_task = {task: sum(e.success for e in ended if e.job.task == task) for task in TASKS}
    return {"episodes": len(ended), "successes": len(won), "by_task": by_task, "steps": sum(won) / max(1, len(won))}


def _episodes(
    model: str, arms: list[MetaworldArm], task: str, pipelining: PipelineConfig | None, episodes: int, steps: int
) -> Iterator[Episode]:
    from lab.rollouts.framed_rounds import run_frames
    from ros2_rfm_serving.engines.base import stepping
    from ros2_rfm_serving.shipped import shipped
    from ros2_rfm_serving.worlds.rounds import Job, blind_engine, run_rounds

    engine, horizon = blind_engine(shipped("models", _bundle(model))), HorizonRequest(policy="static", steps=steps)
    jobs = [Job(task=task, seed=FIRST_SEED + i, horizon=horizon) for i in range(episodes)]
    if pipelining is None:
        return run_rounds(arms, engine, jobs)
    return run_frames(arms, stepping(engine), jobs, pipelining, steps_per_frame=steps)


def _said(figures: dict[str, Any]) -> tuple[str, str, str]:
    if "episodes" not in figures:
        return "-", "-", "-"
    from ros2_rfm_serving.monitoring.board import wilson_interval

    low, high = wilson_interval(figures["successes"], figures["episodes"])
    return f"{figures['successes']}/{figures['episodes']}", f"{100 * low:.0f} - {100 * high:.0f} %", f"{figures['steps']:.0f}"


def _bundle(model: str) -> str:
    from ros2_rfm_serving.factory import Catalogue
    from ros2_rfm_serving.shipped import shipped

    return Catalogue.load(shipped("config", "profiles", "models.yaml"))[model].bundle
