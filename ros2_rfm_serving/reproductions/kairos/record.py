"""`rfm reproduce kairos --record`: the sweep over execution horizons and the traces, in Meta-World."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.inputs import write_text
from ros2_rfm_serving.reproductions.files import write_rows
from ros2_rfm_serving.reproductions.kairos.files import SWEEP, TRACES
from ros2_rfm_serving.shipped import shipped

if TYPE_CHECKING:
    from ros2_rfm_serving.reproductions.kairos.episodes import Arms
    from ros2_rfm_serving.reproductions.kairos.sweep import Cell

NOISES, DISTURBED_SHARE = (0.0, 0.3), 0.2
"""Of the executed actions; and the share of the episodes that the disturbed sweep has."""
BLOCK = 20
"""Seeds after which the counts are written."""


def record_into(out: Path, episodes: int) -> None:
    """Sweep and traces. Raises: `ConfigurationError` without Meta-World."""
    try:
        import torch

        from ros2_rfm_serving.reproductions.kairos.episodes import make_arms, record
        from ros2_rfm_serving.reproductions.kairos.sweep import chosen
        from ros2_rfm_serving.reproductions.kairos.traces import write_traces
        from ros2_rfm_serving.worlds.rounds import blind_engine
    except ImportError as error:
        fix = "pip install 'ros2-rfm-serving[metaworld]'"
        raise ConfigurationError(f"recording needs {error.name}", key="--record", fix=fix) from None
    torch.set_num_threads(1)
    folder = shipped("models", "metaworld_flow")
    arms = make_arms()
    cells = _sweep(arms, folder, out / SWEEP, episodes)
    engine = blind_engine(folder)
    horizons = chosen(cell for cell in cells if not cell.noise)
    write_text(out / TRACES, write_traces(record(arms, engine, horizons, episodes)))


def _sweep(arms: Arms, folder: Path, file: Path, episodes: int) -> list[Cell]:
    from ros2_rfm_serving.reproductions.kairos.episodes import Sweep
    from ros2_rfm_serving.reproductions.kairos.sweep import settings
    from ros2_rfm_serving.worlds.rounds import blind_engine

    sweeps = [Sweep(arms, blind_engine(folder), noise) for noise in NOISES]
    shares = [1.0 if not noise else DISTURBED_SHARE for noise in NOISES]
    per_seed = len(settings()) * len(arms)
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("episodes", total=sum(per_seed * max(1, round(share * episodes)) for share in shares))
        for sweep, share in zip(sweeps, shares, strict=True):
            seeds = range(max(1, round(share * episodes)))
            for first in range(0, len(seeds), BLOCK):
                for _ in sweep.run(seeds[first : first + BLOCK]):
                    progress.advance(bar)
                write_rows(file, (asdict(cell) for of in sweeps for cell in of.cells))
    return [cell for sweep in sweeps for cell in sweep.cells]
