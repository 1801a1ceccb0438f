"""`rfm bench precision`: cost and gain of weight precision, and cost of a wrong position index (vla.cpp, Tables 10 and 11)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.table import Table

from lab.benchmarks.console import JsonFile, console
from ros2_rfm_serving.shipped import shipped

if TYPE_CHECKING:
    import numpy as np

    from ros2_rfm_serving.engines.base import Engine
    from ros2_rfm_serving.engines.embedded.networks import FlowPolicyNetwork
    from ros2_rfm_serving.engines.flow.engine import FlowEngine
    from ros2_rfm_serving.types import InferenceRequest

PRECISIONS = "float32,bfloat16,float16,int8,int4"
STEPS = (1, 2, 4, 8)
WARM, CHUNKS = 10, 100
DELAY_STEPS = 2
"""Control steps from a request to its answer: 100 ms."""


@dataclass(frozen=True, kw_only=True)
class Row:
    precision: str
    weights_bytes: int
    load_s: float
    first_chunk_s: float
    """Time of the first chunk after loading, in which graphs are traced."""
    chunk_s: float
    """Median time of a chunk."""
    worst: str
    """Block with the largest error relative to its tolerance."""
    error: float
    tolerance: float
    served: bool
    """Whether the gate passes."""
    successes: int
    episodes: int


def precision(
    precisions: Annotated[str, typer.Option(help="Of weights")] = PRECISIONS,
    episodes: Annotated[int, typer.Option(min=0, help="Per task, four tasks, in lockstep; 0: none")] = 13,
    model: Annotated[Path | None, typer.Option(help="Folder of a bundle; its episodes are Meta-World's")] = None,
    json_file: JsonFile = None,
) -> None:
    """Weights in memory, start, parity gate and success of a policy at each precision; and of a wrong position index.

    A precision that fails its gate is measured all the same: it says what the gate keeps from a robot.

    Examples:  rfm bench precision   |   rfm bench precision --precisions float32,int8 --episodes 0 --model ~/models/towels
    """
    import torch

    torch.set_num_threads(1)
    folder = model or shipped("models", "metaworld_flow")
    started = {name: _started(folder, name) for name in precisions.split(",")}
    chunks_s = _chunks_s({name: start.engine for name, start in started.items()})
    rows = [_row(name, start, chunks_s[name], episodes) for name, start in started.items()]
    figures: dict[str, Any] = {"file_bytes": (folder / "model.safetensors").stat().st_size, "rows": [asdict(row) for row in rows]}
    console.print(_table(rows))
    if episodes:
        figures["wrong_index"] = _wrong_index(folder, episodes)
        console.print(_index_table(figures["wrong_index"]))
    if json_file:
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


class Start(NamedTuple):
    """Engine with its start-up times in CPU time, which other load of the machine does not affect."""

    engine: FlowEngine
    load_s: float
    first_chunk_s: float


def _started(folder: Path, name: str) -> Start:
    from ros2_rfm_serving.engines.bundles import load_bundle
    from ros2_rfm_serving.engines.embedded.options import BundleOptions
    from ros2_rfm_serving.engines.flow.engine import FlowEngine
    from ros2_rfm_serving.engines.warmup import warmup_request

    began_s = time.process_time()
    engine = load_bundle("policy", folder, BundleOptions.model_validate({"device": "cpu", "dtype": name}))
    load_s = time.process_time() - began_s
    assert isinstance(engine, FlowEngine)
    return Start(engine, load_s, _timed_s(engine, warmup_request(engine.contract)))


def _chunks_s(engines: Mapping[str, Engine]) -> dict[str, float]:
    """Return medians of interleaved rounds, after a few that are not counted."""
    from ros2_rfm_serving.engines.warmup import warmup_request

    times: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(WARM + CHUNKS):
        for name, engine in engines.items():
            times[name].append(_timed_s(engine, warmup_request(engine.contract)))
    return {name: median(own[WARM:]) for name, own in times.items()}


def _timed_s(engine: Engine, request: InferenceRequest) -> float:
    began_s = time.process_time()
    engine.infer([request])
    return time.process_time() - began_s


def _row(name: str, start: Start, chunk_s: float, episodes: int) -> Row:
    checks = start.engine.check_parity()
    worst = max(checks, key=lambda check: check.error / check.tolerance)
    return Row(
        precision=name,
        weights_bytes=start.engine.weights_bytes,
        load_s=start.load_s,
        first_chunk_s=start.first_chunk_s,
        chunk_s=chunk_s,
        worst=worst.block,
        error=worst.error,
        tolerance=worst.tolerance,
        served=all(check.passes for check in checks),
        successes=_successes(start.engine, episodes),
        episodes=4 * episodes,
    )


def _successes(engine: Engine, episodes: int) -> int:
    """Return the successes in four tasks, in the shipped robot's own mode."""
    if not episodes:
        return 0
    from lab.benchmarks.rtc.run import config_of
    from lab.rollouts.closed_loop import run_trials
    from ros2_rfm_serving.worlds.metaworld import TASKS, metaworld_arm

    successes = 0
    for number, (task, spec) in enumerate(TASKS.items()):
        first = 10_000_000 * (number + 1)
        with metaworld_arm(task) as arm:
            seeds = range(first, first + episodes)
            trials = run_trials(arm, engine, config_of("default"), spec.instructions[0], seeds, delay_steps=DELAY_STEPS)
        successes += sum(trial.success for trial in trials)
    return successes


def _table(rows: list[Row]) -> Table:
    from ros2_rfm_serving.monitoring.board import wilson_interval

    table = Table("weights", "in memory", "load", "first chunk", "chunk", "furthest off", "gate", "success", "95 % interval")
    for row in rows:
        low, high = wilson_interval(row.successes, row.episodes)
        table.add_row(
            row.precision,
            f"{row.weights_bytes / 1e6:.2f} MB ({row.weights_bytes / rows[0].weights_bytes:.0%})",
            f"{1e3 * row.load_s:.0f} ms",
            f"{1e3 * row.first_chunk_s:.0f} ms",
            f"{1e3 * row.chunk_s:.1f} ms",
            f"{row.worst}: {row.error:.2g} of {row.tolerance:g}",
            "served" if row.served else "refused",
            f"{row.successes}/{row.episodes}" if row.episodes else "-",
            f"{low:.0%} - {high:.0%}" if row.episodes else "-",
        )
    return table


# --- wrong position index ---


def misplaced(network: FlowPolicyNetwork) -> None:
    """Move each patch's position to that of the patch before it, in both directions, like SmolVLA's index in float32 (transformers
    before 5): `1 - 1e-6` keeps a fraction below the boundary where it belongs."""
    import torch

    side = network.config.image_size_px // network.config.patch_px
    fractions, boundaries = torch.arange(side) / side * (1 - 1e-6), torch.arange(1, side) / side
    nearest = torch.bucketize(fractions, boundaries, right=True)
    index = (side * nearest[:, None] + nearest).flatten()
    every = torch.cat([camera * side**2 + index for camera in range(len(network.config.cameras))])
    network.image_tokens.position.data = network.image_tokens.position.data[every]


def _wrong_index(folder: Path, episodes: int) -> dict[str, Any]:
    """Return the displacement of chunks in robot space by solver steps, and the successes."""
    right, wrong = (_engine(folder, wrong=wrong, num_steps=None) for wrong in (False, True))
    requests = _first_observations(right)
    moved = {}
    for steps in STEPS:
        one, other = (_chunks(_engine(folder, wrong=wrong, num_steps=steps), requests) for wrong in (False, True))
        moved[steps] = float(abs(one - other).max())
    first = next(check for check in wrong.check_parity() if not check.passes)
    return {
        "displacement": moved,
        "first_failing_block": first.block,
        "error": first.error,
        "successes": {"right": _successes(right, episodes), "wrong": _successes(wrong, episodes)},
        "episodes": 4 * episodes,
    }


def _engine(folder: Path, *, wrong: bool, num_steps: int | None) -> Engine:
    from ros2_rfm_serving.engines.embedded import bundle
    from ros2_rfm_serving.engines.embedded.engine import FlowPolicy, sampling_of
    from ros2_rfm_serving.engines.embedded.networks import FlowPolicyNetwork
    from ros2_rfm_serving.engines.embedded.options import BundleOptions
    from ros2_rfm_serving.engines.flow.engine import FlowEngine

    def saved() -> FlowPolicyNetwork:
        network, _ = bundle.load(folder)
        assert isinstance(network, FlowPolicyNetwork)
        return network

    network, options = saved(), BundleOptions(device="cpu", num_steps=num_steps)
    if wrong:
        misplaced(network)
    return FlowEngine(FlowPolicy("policy", network, "", options, saved=saved), sampling_of(network.config, options))


def _first_observations(engine: Engine) -> list[InferenceRequest]:
    from ros2_rfm_serving.engines.warmup import warmup_request
    from ros2_rfm_serving.worlds.metaworld import TASKS, metaworld_arm

    blank, requests = warmup_request(engine.contract), []
    for number, (task, spec) in enumerate(TASKS.items()):
        with metaworld_arm(task) as arm:
            arm.reset(10_000_000 * (number + 1))
            requests.append(replace(blank, state=arm.state, images=arm.render(), instruction=spec.instructions[0]))
    return requests


def _chunks(engine: Engine, requests: list[InferenceRequest]) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.stack([engine.infer([request])[0].chunk_robot for request in requests])  # type: ignore[union-attr]


def _index_table(found: dict[str, Any]) -> Table:
    table = Table("position index", *(f"moved, {steps} steps" for steps in found["displacement"]), "success", "found by the gate")
    table.add_row("right", *("0" for _ in STEPS), f"{found['successes']['right']}/{found['episodes']}", "-")
    moved = (f"{each:.2g}" for each in found["displacement"].values())
    table.add_row("wrong", *moved, f"{found['successes']['wrong']}/{found['episodes']}", found["first_failing_block"])
    return table
