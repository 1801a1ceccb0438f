"""Duration of a batch of an architecture with random weights: 1, 8 and 32 rows, eager, compiled, recorded as graphs, and both."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from lab.benchmarks.gpu.child import Task
from lab.benchmarks.gpu.networks import engine_of
from lab.benchmarks.gpu.rows import Value
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import EnginePhases, InferenceRequest

BATCHES, TOY_BATCHES = (1, 8, 32), (1, 4)
IMAGE_PX = (224, 224)
"""Width and height of a robot's images, which no architecture has to reduce here."""
SECONDS, MOST_CALLS, LEAST_CALLS = 2.0, 100, 5
TOY_CALLS = 5
COMPILED = {"compiled", "served"}
RECORDED = {"graphs", "served"}
QUICK_BACKEND = "aot_eager"
"""Backend of a toy on a CPU, where kernels would be compiled for minutes: it traces and runs the graph without compiling."""
WHOLLY = "smolvla"
"""The one toy whose kernels are compiled on a CPU too, for one row."""


class Times(NamedTuple):
    whole_s: list[float]
    phases: list[EnginePhases]


def options_of(task: Task, mode: str) -> BundleOptions:
    """Return the options of a mode; graphs on a CPU, and compilation on its servers, are off, and their rows show it."""
    on_gpu = task.machine.on_gpu
    return BundleOptions(
        device=task.machine.device,
        dtype="float32" if task.is_toy else "bfloat16",
        compile=mode in COMPILED and (on_gpu or mode == "compiled"),
        cuda_graphs=mode in RECORDED and on_gpu,
        trace=False,
        batch_sizes=BATCHES,
    )


def ran_as(options: BundleOptions, backend: str) -> str:
    ways = [way for way, on in ((f"compiled{backend and f' by {backend}'}", options.compiles), ("graphs", options.records)) if on]
    return "+".join(ways) or "eager"


def run(task: Task, name: str, *modes: str) -> None:
    for done, mode in enumerate(modes):
        _run(task, name, mode, done)


def _run(task: Task, name: str, mode: str, done: int) -> None:
    """Measure one mode. done: parts that this process has finished."""
    rows, options = task.rows("speed"), options_of(task, mode)
    quick = options.compiles and task.is_toy and not task.machine.on_gpu
    backend = QUICK_BACKEND if quick and name != WHOLLY else ""
    sizes = BATCHES if not task.is_toy else TOY_BATCHES[:1] if quick else TOY_BATCHES
    missing = [size for size in sizes if not rows.has(architecture=name, mode=mode, batch=size)]
    if not missing:
        return
    task.begin(done)
    torch.compiler.set_stance("default", force_backend=backend or None)
    engine = engine_of(name, task.machine.size, options)
    engine.clock = time.perf_counter
    for number, size in enumerate(missing):
        task.begin(number)
        key: dict[str, Value] = {"architecture": name, "mode": mode, "batch": size, "ran": ran_as(options, backend)}
        key["dtype"] = options.dtype
        rows.add(**key, **_figures(engine, size, task))
        print(f"{name}, {mode}, batch of {size}: {rows.rows[-1]['p50_ms'] or rows.rows[-1]['said']} ms", flush=True)


def _figures(engine: SteppingEngine, size: int, task: Task) -> dict[str, Value]:
    """Return the figures; they are empty with the error message where memory does not suffice."""
    if task.machine.on_gpu:
        torch.cuda.reset_peak_memory_stats(task.machine.device)
    try:
        began_s = time.perf_counter()
        engine.prepare(size)
        prepared_s = time.perf_counter() - began_s
        times = _timed(engine, size, task.is_toy)
    except ModelError as error:
        return {**dict.fromkeys(COLUMNS, ""), "image_px": IMAGE_PX[0], "said": str(error)}
    p50_s, p99_s = np.quantile(times.whole_s, [0.5, 0.99]).tolist()
    peak = torch.cuda.max_memory_allocated(task.machine.device) / 1e6 if task.machine.on_gpu else 0.0
    figures = (
        engine.weights_bytes / 1e6,
        prepared_s,
        len(times.whole_s),
        1e3 * p50_s,
        1e3 * p99_s,
        size / p50_s,
        1e3 * median(phases.perception_s for phases in times.phases),
        1e3 * median(phases.solver_s for phases in times.phases),
        times.phases[0].solver_steps,
        peak or "",
    )
    return {**dict(zip(COLUMNS, figures, strict=True)), "image_px": IMAGE_PX[0], "said": ""}


COLUMNS = (
    "weights_mb",
    "prepare_s",
    "calls",
    "p50_ms",
    "p99_ms",
    "rows_hz",
    "perception_ms",
    "solver_ms",
    "solver_steps",
    "peak_mb",
)


def fitted_request(engine: SteppingEngine) -> InferenceRequest:
    """Return a request with images as a decoding thread prepares them, which is not timed."""
    blank = warmup_request(engine.contract, IMAGE_PX)
    if not engine.fit_image:
        return blank
    pixels = {camera: image for camera, image in blank.images.items() if isinstance(image, np.ndarray)}
    return replace(blank, images={camera: engine.fit_image(image) for camera, image in pixels.items()})


def _timed(engine: SteppingEngine, size: int, is_toy: bool) -> Times:
    """Time calls of `infer`, which end when their chunks are on the host. Raises: `ModelError`."""
    requests = [fitted_request(engine)] * size
    times, until_s = Times([], []), time.perf_counter() + SECONDS
    engine.infer(requests)
    least, most = (TOY_CALLS, TOY_CALLS) if is_toy else (LEAST_CALLS, MOST_CALLS)
    while len(times.whole_s) < least or (len(times.whole_s) < most and time.perf_counter() < until_s):
        began_s = time.perf_counter()
        (first, *_) = engine.infer(requests)
        times.whole_s.append(time.perf_counter() - began_s)
        if isinstance(first, ModelError):
            raise first
        times.phases.append(first.phases)
    return times
