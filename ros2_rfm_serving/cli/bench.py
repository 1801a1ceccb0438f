"""`rfm bench`: measurements, side by side in one run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ros2_rfm_serving.cli import bench_engine, bench_network, bench_robot, bench_robots, bench_rtc, bench_scheduler, bench_serving
from ros2_rfm_serving.cli.engines import load_engine

if TYPE_CHECKING:
    from ros2_rfm_serving.cli.up import Outcome

app = typer.Typer(help="Measurements, side by side in one run.", no_args_is_help=True)
app.command("scheduler")(bench_scheduler.scheduler)
app.command("engine")(bench_engine.engine)
app.command("network")(bench_network.network)
app.command("robot")(bench_robot.robot)
app.command("robots")(bench_robots.robots)
app.command("rtc")(bench_rtc.rtc)
app.command("serving")(bench_serving.serving)
console = Console() if Console().is_terminal else Console(width=120)
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the figures there")]


@app.command()
def path(
    robots: Annotated[str, typer.Option(help="Numbers of robots, one after the other")] = "1,8",
    seconds: Annotated[float, typer.Option(min=1, help="Of every measurement")] = 10.0,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved repetitions: their spread is reported")] = 3,
    image_size_px: Annotated[int, typer.Option(help="Two cameras of this width and height")] = 224,
    model: Annotated[str, typer.Option(help="What the server runs; its inference time is subtracted")] = "emulated/instant",
    domain: Annotated[int, typer.Option(help="ROS domain of the measurement")] = 77,
    json_file: JsonFile = None,
) -> None:
    """Our cost per request: observation sent to chunk in the queue, minus inference.

    Beside it, in the same run, the transport alone: the same observation echoed by a node that reads nothing.

    Example:  rfm bench path --robots 1,8
    """
    from ros2_rfm_serving.cli.up import prepare_environment

    prepare_environment(domain)
    counts = [int(part) for part in robots.split(",")]
    rows: dict[str, list[list[float]]] = {"transport alone": [], **{f"{n} robots" if n > 1 else "1 robot": [] for n in counts}}
    waits: dict[str, list[float]] = {name: [] for name in rows}
    with _server(model), _echo():
        for _ in range(rounds):
            image_bytes, round_trips = _measure_echo(image_size_px, seconds)
            rows["transport alone"].append(round_trips)
            for name, n in zip(list(rows)[1:], counts, strict=True):
                overheads, queue_waits = _measure_path(n, image_size_px, seconds)
                rows[name].append(overheads)
                waits[name] += queue_waits
    table = Table("path", "requests", "p50", "p99", "p50 of the rounds", "of it decoding, queueing", "p50 over transport")
    figures = {}
    for name, samples in rows.items():
        figures[name] = _figures(samples, rows["transport alone"], waits[name])
        f = figures[name]
        table.add_row(
            name,
            str(f["requests"]),
            f"{f['p50_ms']:.2f} ms",
            f"{f['p99_ms']:.2f} ms",
            f"{min(f['rounds_p50_ms']):.2f} - {max(f['rounds_p50_ms']):.2f} ms",
            f"{f['queue_wait_p50_ms']:.2f} ms" if waits[name] else "-",
            f"{min(f['ratio_to_transport']):.1f} - {max(f['ratio_to_transport']):.1f} x",
        )
    console.print(f"two {image_size_px} x {image_size_px} JPEG images ({image_bytes >> 10} KB), chunk 16 x 4, served by {model}")
    console.print(table)
    if json_file:
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


@app.command()
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
    from ros2_rfm_serving.ros.runtime import share

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
    from ros2_rfm_serving.cli.up import Options, run_factory

    options = Options(
        episodes=episodes, domain=domain, logs=Path("logs") / "bench_policy", work={"episodes": 0, "end_on_score": True}
    )
    return run_factory(descriptor, options)


@contextmanager
def process(module: str, *arguments: str) -> Iterator[int]:
    """A node in a process of its own, until the end of the block; its process id."""
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    started = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield started.pid
    finally:
        started.send_signal(signal.SIGINT)
        try:
            started.wait(timeout=10)
        except subprocess.TimeoutExpired:
            started.kill()


@contextmanager
def _server(model: str) -> Iterator[None]:
    gpu_type = "EMULATED" if model.startswith("emulated/") else "CPU"
    parameters = [f"model:={model}", "server:=bench", "batch_size:=8", f"gpu_type:={gpu_type}"]
    with process("ros2_rfm_serving.ros.model_server_node", "--ros-args", *[part for p in parameters for part in ("-p", p)]):
        yield


@contextmanager
def _echo() -> Iterator[None]:
    with process("ros2_rfm_serving.ros.bench_path"):
        yield


def _measure_path(num_robots: int, image_size_px: int, seconds: float) -> tuple[list[float], list[float]]:
    """(overheads, queue waits) in s, the first second after the first chunk left out."""
    from ros2_rfm_serving.ros.bench_path import BenchRobots

    with spinning(lambda: BenchRobots("bench", num_robots, image_size_px)) as (node, spin):
        spin(lambda: bool(node.overheads_s), 30.0)
        spin(lambda: False, 1.0)
        node.overheads_s.clear()
        node.queue_waits_s.clear()
        spin(lambda: False, seconds)
        return node.overheads_s, node.queue_waits_s


def _measure_echo(image_size_px: int, seconds: float) -> tuple[int, list[float]]:
    from ros2_rfm_serving.ros.bench_path import CAMERAS, EchoClient, camera_image

    with spinning(lambda: EchoClient(image_size_px)) as (node, spin):
        spin(lambda: bool(node.round_trips_s), 30.0)
        spin(lambda: False, 1.0)
        node.round_trips_s.clear()
        spin(lambda: False, seconds)
        return sum(len(camera_image(image_size_px, i)) for i in range(len(CAMERAS))), node.round_trips_s


@contextmanager
def spinning(make: Any) -> Iterator[Any]:
    """A node of this process and a `spin(until, at most seconds)` for it."""
    import rclpy

    from ros2_rfm_serving.ros.runtime import executor

    rclpy.init(args=[])
    node, spinner = make(), executor()
    spinner.add_node(node)

    def spin(until: Any, at_most_s: float) -> None:
        end_s = time.monotonic() + at_most_s
        while time.monotonic() < end_s and not until():
            spinner.spin_once(timeout_sec=0.1)

    try:
        yield node, spin
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


def _figures(rounds: list[list[float]], transport: list[list[float]], waits: list[float]) -> dict[str, Any]:
    import numpy as np

    everything = np.concatenate([np.asarray(r) for r in rounds]) if any(rounds) else np.array([np.nan])
    medians = [float(np.median(r)) if r else float("nan") for r in rounds]
    return {
        "requests": len(everything),
        "p50_ms": 1e3 * float(np.quantile(everything, 0.5)),
        "p99_ms": 1e3 * float(np.quantile(everything, 0.99)),
        "rounds_p50_ms": [1e3 * m for m in medians],
        "queue_wait_p50_ms": 1e3 * float(np.median(waits)) if waits else float("nan"),
        "ratio_to_transport": [m / float(np.median(t)) for m, t in zip(medians, transport, strict=True)],
    }
