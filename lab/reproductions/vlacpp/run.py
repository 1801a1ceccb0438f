"""`rfm reproduce vlacpp`: study of the number of steps of a chunk that are executed before the next call, in simulated worlds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lab.reproductions.claims import claims_table
from lab.reproductions.files import make_folder
from lab.reproductions.machine import this_machine
from lab.reproductions.vlacpp.points import FILE, POINTS, TIMED, Replanned, Timing, load, save
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.inputs import console
from ros2_rfm_serving.processor import processor
from ros2_rfm_serving.reports.charts import require_matplotlib
from ros2_rfm_serving.shipped import shipped

if TYPE_CHECKING:
    from lab.reproductions.vlacpp.laboratory import Laboratory

EPISODES = 52
ROUNDS = 200
"""Rounds in which every point's calls are timed."""
ANEW = "measure anew, with --anew, or choose another folder"


def vlacpp(
    episodes: Annotated[int, typer.Option(min=1, help="Per point, over the four tasks")] = EPISODES,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The page, data and plot go there")] = Path("reproductions/vlacpp"),
    models: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the bundles; default: the shipped ones")] = None,
    anew: Annotated[bool, typer.Option("--anew", help="Forget what was measured; else it goes on from there")] = False,
) -> None:
    """vla.cpp App. G: success, latency and control rate over the replan interval, with and without real-time chunking.

    Examples:  rfm reproduce vlacpp --episodes 8 --out /tmp/vlacpp   |   rfm reproduce vlacpp --out docs/reproductions/vlacpp
    """
    require_matplotlib()  # errors at the end of a long run are found at its beginning
    from lab.reproductions.vlacpp.claims import claims_of
    from lab.reproductions.vlacpp.page import write

    make_folder(out)
    results = Replanned() if anew else load(out / FILE)
    _require_alike(results, episodes, out / FILE)
    results.episodes = episodes
    try:
        measure(results, _laboratory(models or shipped("models"), episodes), out / FILE)
    except KeyboardInterrupt:
        console.print("stopped; what was measured is kept, and the same command goes on from there")
    claims = claims_of(results)
    write(results, claims, out)
    console.print(claims_table(claims))
    console.print(f"data and plot: {out}")


def measure(results: Replanned, laboratory: Laboratory, file: Path) -> None:
    """Measure missing points with a progress bar on stderr, then time the calls. Each result is saved at once."""
    missing = [point for point in POINTS if str(point) not in results.outcomes]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(missing))
        for point in missing:
            progress.update(bar, description=str(point))
            results.outcomes[str(point)] = laboratory.run(point)
            results.machine = this_machine()
            save(results, file)
            progress.advance(bar)
    if not _is_timed(results):
        console.print("calls of all points, in turns")
        call_s = laboratory.time(TIMED, ROUNDS)
        results.timing = Timing(machine=this_machine(), rounds=ROUNDS, call_s=call_s)
        save(results, file)


def _is_timed(results: Replanned) -> bool:
    return all(str(point) in results.timing.call_s for point in TIMED)


def _laboratory(models: Path, episodes: int) -> Laboratory:
    """Return the experiment runner. Raises: `ConfigurationError` without PyTorch or Meta-World."""
    try:
        from lab.reproductions.vlacpp.laboratory import Laboratory
    except ImportError as error:
        fix = "pip install 'ros2-rfm-serving[torch,metaworld]'"
        raise ConfigurationError(f"this reproduction needs {error.name}", fix=fix) from None
    return Laboratory(models, episodes)


def _require_alike(results: Replanned, episodes: int, file: Path) -> None:
    """Check the present results. Raises: `ConfigurationError` when they are of another machine or other parameters."""
    if not results.outcomes:
        return
    if results.episodes != episodes:
        raise ConfigurationError(f"was measured with {results.episodes} episodes, not {episodes}", file=str(file), fix=ANEW)
    is_done = all(str(point) in results.outcomes for point in POINTS) and _is_timed(results)
    if not is_done and (theirs := results.machine.get("processor")) != processor():
        raise ConfigurationError(f"was measured on {theirs}, not {processor()}", file=str(file), fix=ANEW)
