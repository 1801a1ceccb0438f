"""Servers that `rfm profile` loads: servers of a service law, and engines on this machine, with both kinds of batching."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from ros2_rfm_serving.engines.base import Engine, stepping
from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.engines.warmup import warm_up, warmup_request
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.profiles import Profile, load_profiles
from ros2_rfm_serving.profiles.measure import EngineSubject, Subject, subject_of
from ros2_rfm_serving.profiles.table import CurveKey
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.virtual_time.under_load import engine_subject, law_subject

DERIVED_REPETITIONS = 8
STEPPED_REPETITIONS = 2
"""Repetitions for a law of solver steps, which computes a server's decisions at every iteration instead of a formula."""
BATCHINGS = ("fixed", "continuous")
USUAL_SIZES = (1, 2, 4, 8)
MOST_ROWS = 32
"""Maximum number of rows in flight of a server that batches continuously, unless larger batches are requested."""


@dataclass(frozen=True)
class Server:
    """A model at one batch size: one curve per arrival process."""

    key: CurveKey
    start: Callable[[], Subject]
    """Load and warm up the server; called only when something is to be measured."""
    repetitions: int = 1
    """Repetitions of each point."""


def derived(model: str, entry: CatalogueEntry, gpu_type: str, sizes: tuple[int, ...], ways: Collection[str]) -> Iterator[Server]:
    footprint = entry.gpus.get(gpu_type)
    if not footprint or not footprint.service:
        raise ModelError(f"{model!r} has no `service` on {gpu_type!r} in models.yaml to derive from; state one, or measure it")
    law, stepped = footprint.service.law(), footprint.service.stepped_law()
    wanted = (sizes or footprint.service.batch_sizes) if law.batching == "fixed" else (1,)
    for size in wanted if law.batching in ways else ():
        yield Server((model, gpu_type, law.batching, size), partial(subject_of, law, size), DERIVED_REPETITIONS)
    if stepped and stepped.batching in ways:
        yield Server((model, gpu_type, stepped.batching, 1), partial(law_subject, stepped), STEPPED_REPETITIONS)


def measured(
    model: str,
    gpu_type: str,
    sizes: tuple[int, ...],
    ways: Collection[str],
    size_px: tuple[int, int],
    load: Callable[[], Engine],
) -> Iterator[Server]:
    engine = cache(load)
    for size in (sizes or USUAL_SIZES) if "fixed" in ways else ():
        yield Server((model, gpu_type, "fixed", size), lambda size=size: _subject(engine(), size, size_px))  # type: ignore[misc]
    if "continuous" in ways:
        most_rows = max(sizes, default=MOST_ROWS)
        yield Server((model, gpu_type, "continuous", 1), lambda: _stepping_subject(engine(), most_rows, size_px))


def load_model(model: str, entry: CatalogueEntry, gpu_type: str, threads: int, folder: Path) -> Engine:
    profile = load_profiles(folder) if entry.engine == "emulated" else Profile({})
    spec = EngineSpec(
        model=model,
        entry=entry,
        models_folder=shipped("models"),
        profile=profile,
        gpu_type=gpu_type,
        wait=time.sleep,
        threads=threads,
    )
    return build_engine(spec)


def _subject(engine: Engine, batch_size: int, size_px: tuple[int, int]) -> Subject:
    """Return a real engine under load, whose time is wall time."""
    engine.prepare(batch_size)
    warm_up(engine, batch_size, size_px)
    blank = warmup_request(engine.contract, size_px, encoded=engine.takes_encoded)

    def run(num_requests: int) -> float:
        started_s = time.perf_counter()
        engine.infer([blank] * num_requests)
        return time.perf_counter() - started_s

    return EngineSubject(run, batch_size)


def _stepping_subject(engine: Engine, most_rows: int, size_px: tuple[int, int]) -> Subject:
    """Return an engine that batches continuously, under load. Raises: `ModelError` for an engine that takes only whole requests."""
    stepping(engine)
    engine.prepare(min(most_rows, engine.max_batch_size))
    return engine_subject(engine, size_px)
