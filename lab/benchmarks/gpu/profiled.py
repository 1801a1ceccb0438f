"""Measured latency profiles of architectures: like `rfm profile`, with random weights, executed as on a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

from rich.console import Console

from lab.benchmarks.gpu.child import Later, Task
from lab.benchmarks.gpu.machine import Machine
from lab.benchmarks.gpu.networks import engine_of, recorded
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.operate.profile_sheet import Sheet
from ros2_rfm_serving.operate.profiled import BATCHINGS, measured
from ros2_rfm_serving.profiles import ARRIVALS

PUBLISHED = {"groot_n1_6": "nvidia/GR00T-N1.6-3B", "pi05": "physical-intelligence/pi0.5"}
"""Architecture -> model of the catalogue."""
SIZES, TOY_SIZES = (1, 2, 4, 8, 16), (1, 2)
REQUESTS, TOY_REQUESTS = 120, 4
TOY_ARRIVALS = ("periodic", "fleet")
IMAGE_PX = (224, 224)


def run(task: Task, name: str, extent: str = "") -> None:
    """Measure a profile. extent: `all` for every arrival process; otherwise a fleet's alone, which is nearest to a factory."""
    arrivals = TOY_ARRIVALS if task.is_toy else ARRIVALS if extent == "all" else ARRIVALS[:1]
    fill(task, name, model_of(task.machine, name), partial(_loaded, task, name), BATCHINGS, arrivals=arrivals)


def fill(
    task: Task,
    name: str,
    model: str,
    load: Callable[[], Engine],
    ways: Sequence[str],
    toy_sizes: tuple[int, ...] = TOY_SIZES,
    arrivals: Sequence[str] = ARRIVALS,
) -> None:
    """Measure point by point; points in the file are not measured again."""
    sheet, toy = sheet_of(task), task.is_toy
    found = measured(model, task.machine.gpu_type, toy_sizes if toy else SIZES, ways, IMAGE_PX, load)
    servers = [replace(server, start=cache(server.start)) for server in found]  # each server is started once for all arrivals
    for done, server in enumerate(servers):
        task.begin(done)
        for process in arrivals:
            before = len(sheet.rows)
            sheet.fill([server], [process], TOY_REQUESTS if toy else REQUESTS, Console(width=120, quiet=True))
            print(f"{name}: {server.key}, {process}: {len(sheet.rows) - before} points", flush=True)
            if len(sheet.rows) > before and time.monotonic() > task.until_s:
                raise Later


def model_of(machine: Machine, name: str) -> str:
    return machine.model(PUBLISHED.get(name, name) if machine.size == "full" else name)


def sheet_of(task: Task) -> Sheet:
    """Return the profile of all models, for this machine alone."""
    folder = task.out / "profiles"
    folder.mkdir(exist_ok=True)
    return Sheet(folder / task.machine.profile_name, comment_of(task.machine))


def comment_of(machine: Machine) -> str:
    """Return the first line of a profile. It names no driver, which may change before a run is resumed."""
    where = f"device {machine.identity['device']} ({machine.gpu}), PyTorch {machine.torch}, size {machine.size}"
    no_gpu = "" if machine.on_gpu else "; NO GPU's figures"
    return f"measured by `rfm bench gpu`, random weights, {where}, camera images of {IMAGE_PX[0]}x{IMAGE_PX[1]}{no_gpu}"


def _loaded(task: Task, name: str) -> SteppingEngine:
    """Return an engine that is recorded on a GPU and not compiled; a toy runs eagerly on a CPU."""
    return engine_of(name, task.machine.size, recorded(task.machine, TOY_SIZES if task.is_toy else SIZES))
