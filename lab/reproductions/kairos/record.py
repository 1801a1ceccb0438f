"""`rfm reproduce kairos --record`: a workload's sweep over execution horizons and its traces, in Meta-World."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lab.reproductions.files import make_folder, write_rows
from lab.reproductions.kairos.files import SWEEP, TRACES
from lab.reproductions.kairos.workloads import Workload
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.inputs import write_text
from ros2_rfm_serving.shipped import shipped

if TYPE_CHECKING:
    from lab.reproductions.kairos.episodes import Arms
    from lab.reproductions.kairos.sweep import Cell
    from ros2_rfm_serving.engines.base import Engine
    from ros2_rfm_serving.types import HorizonRequest

NOISE = 0.3
"""Standard deviation of the noise on executed actions in the disturbed sweep, full scale 1."""

BLOCK = 20
"""Episodes per block: all settings finish one block before the next, so that partial results can be compared."""
MOST_TRACES = 40
"""Largest number of traces per task and setting."""
T = TypeVar("T")


def record_into(folder: Path, workload: Workload, episodes: int, models: Path | None = None) -> None:
    """Record sweep and traces without repeating present ones: an interrupted recording continues, and a finished one grows.

    models: folder with the workload's bundle; None: the shipped ones. Raises: `ConfigurationError` without Meta-World.
    """
    try:
        import torch

        from lab.reproductions.kairos.episodes import arms_of, engine_of
    except ImportError as error:
        fix = "pip install 'ros2-rfm-serving[metaworld]'"
        raise ConfigurationError(f"recording needs {error.name}", key="--record", fix=fix) from None
    torch.set_num_threads(1)
    make_folder(folder)
    engine = engine_of(workload, models / workload.model if models else shipped("models", workload.model))
    arms = lru_cache(maxsize=1)(lambda task: arms_of(workload, task))
    for so_far in (*range(BLOCK, episodes, BLOCK), episodes):
        cells = _sweep(workload, engine, arms, folder / SWEEP, so_far)
        _traces(workload, engine, arms, folder / TRACES, cells, min(so_far, MOST_TRACES))


def _sweep(workload: Workload, engine: Engine, arms: Arms, file: Path, episodes: int) -> list[Cell]:
    """Count cells task by task; each one is written when it is counted."""
    from lab.reproductions.kairos.episodes import count
    from lab.reproductions.kairos.sweep import Cell, load_cells, value_of

    cells = {cell.setting: cell for cell in load_cells(file)} if file.is_file() else {}
    wanted = [(task, *each) for task in workload.tasks for each in _settings(workload, episodes)]
    for task, noise, horizon, num in _shown(wanted, f"{workload.name}: settings, {episodes} episodes"):
        none = Cell.none(noise, horizon.policy, value_of(horizon), task)
        begun = cells.get(none.setting, none)
        if begun.episodes < num:
            cells[none.setting] = count(arms(task), engine, begun, horizon, num)
            write_rows(file, map(asdict, cells.values()))
    return list(cells.values())


def _settings(workload: Workload, episodes: int) -> list[tuple[float, HorizonRequest, int]]:
    """Return (noise, horizon, episodes) per setting."""
    settings = [(0.0, horizon, episodes) for horizon in workload.settings()]
    if workload.disturbed:
        num = max(1, round(workload.disturbed * episodes))
        settings += [(NOISE, horizon, num) for horizon in workload.settings()]
    return settings


def _traces(workload: Workload, engine: Engine, arms: Arms, file: Path, cells: list[Cell], num: int) -> None:
    """Record traces of every setting that is chosen by now, under any name; those of others are removed."""
    from lab.reproductions.kairos.episodes import record
    from lab.reproductions.kairos.sweep import chosen, recording, value_of
    from lab.reproductions.kairos.traces import load_traces, write_traces

    traces = load_traces(file) if file.is_file() else []
    known = Counter((trace.task, trace.policy, trace.value) for trace in traces)
    names = chosen(workload, (cell for cell in cells if not cell.noise)).values()
    wanted = dict.fromkeys((task, recording(workload, by_task[task])) for task in workload.tasks for by_task in names)
    settings = {(task, horizon.policy, value_of(horizon)) for task, horizon in wanted}
    traces = [trace for trace in traces if (trace.task, trace.policy, trace.value) in settings]
    for task, horizon in _shown(list(wanted), f"{workload.name}: traces"):
        begun = known[task, horizon.policy, value_of(horizon)]
        if begun < num:
            traces += record(arms(task), engine, task, horizon, range(begun, num))
            write_text(file, write_traces(traces))


def _shown(wanted: Sequence[T], description: str) -> Iterator[T]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("left:"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield from progress.track(wanted, description=description)
