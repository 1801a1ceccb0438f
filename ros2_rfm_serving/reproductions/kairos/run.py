"""`rfm reproduce kairos`: recorded tasks replayed against the model server in virtual time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.operate.inputs import console
from ros2_rfm_serving.reports.charts import require_matplotlib
from ros2_rfm_serving.reproductions.claims import claims_table
from ros2_rfm_serving.reproductions.files import make_folder
from ros2_rfm_serving.reproductions.kairos.files import SWEEP, TRACES
from ros2_rfm_serving.reproductions.runs import in_parallel
from ros2_rfm_serving.shipped import shipped

if TYPE_CHECKING:
    from ros2_rfm_serving.reproductions.kairos.claims import Results
    from ros2_rfm_serving.reproductions.kairos.points import Point, Run, Setting
    from ros2_rfm_serving.reproductions.kairos.traces import Trace

FIGURES = ("11", "12", "13", "14", "15", "16", "17")
TASKS, QUICK_TASKS = 400, 40
NUM_SEEDS = 10


def kairos(
    figure: Annotated[str, typer.Option(metavar="|".join((*FIGURES, "all")), help="11: the sweep; 12 holds Table 2")] = "all",
    tasks: Annotated[int, typer.Option(min=1, help="Per replay and seed")] = TASKS,
    seed: Annotated[int, typer.Option(help="The same seed gives the same figures; nine more follow it")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes")] = 2,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The page, data (CSV) and plots (PNG) go there")] = Path(
        "reproductions/kairos"
    ),
    data: Annotated[Path | None, typer.Option(metavar="DIR", help=f"Has {SWEEP} and {TRACES}; default: the shipped ones")] = None,
    record: Annotated[
        int, typer.Option(min=0, metavar="EPISODES", help="Record both anew first, in Meta-World: episodes per task and setting")
    ] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="One seed, few tasks, two rates and fleets: is it alive?")] = False,
) -> None:
    """Kairos §5: Figures 11 to 17, Table 2, and each claim beside ours.

    Examples:  rfm reproduce kairos --figure 12 --out /tmp/kairos   |   rfm reproduce kairos --record 100 --out /tmp/kairos
    """
    from ros2_rfm_serving.reproductions.kairos import data as tables
    from ros2_rfm_serving.reproductions.kairos import plots
    from ros2_rfm_serving.reproductions.kairos.claims import claims_of
    from ros2_rfm_serving.reproductions.kairos.points import FLEETS, RATES, Setting

    if figure not in (*FIGURES, "all"):
        raise ConfigurationError(f"there is no {figure!r}", key="--figure", fix=did_you_mean(figure, (*FIGURES, "all")))
    require_matplotlib()  # what would spoil the end of a long run is said at its beginning
    make_folder(out)
    if record:
        from ros2_rfm_serving.reproductions.kairos.record import record_into

        record_into(out, record)
    folder = out if record else data or shipped("config", "kairos")
    figures = FIGURES if figure == "all" else (figure,)
    setting = Setting(num_tasks=QUICK_TASKS if quick else tasks, seeds=(seed,) if quick else tuple(range(seed, seed + NUM_SEEDS)))
    rates, fleets = ((RATES[0], RATES[-1]), (FLEETS[0], FLEETS[-1])) if quick else (RATES, FLEETS)
    points = _points(figures, rates, fleets)
    results = _results(points, folder, setting, jobs)
    claims = claims_of(results)
    for name in figures:
        tables.write(name, results, out)
        plots.draw(name, results, out)
    if figure == "all":
        tables.write_page(results, claims, setting, out)
    console.print(claims_table(claims))
    console.print(f"data and plots: {out}")


def _points(figures: Iterable[str], rates: Sequence[float], fleets: Sequence[int]) -> list[Point]:
    from ros2_rfm_serving.reproductions.kairos.points import points_of

    return list(dict.fromkeys(point for figure in figures for point in points_of(figure, rates, fleets)))


@cache
def _traces(folder: Path) -> list[Trace]:
    """Read once in every process."""
    from ros2_rfm_serving.reproductions.kairos.traces import load_traces

    return load_traces(folder / TRACES)


def _run(point: Point, folder: Path, setting: Setting) -> Run:
    from ros2_rfm_serving.reproductions.kairos.points import run

    return run(point, _traces(folder), setting)


def _results(points: Sequence[Point], folder: Path, setting: Setting, processes: int) -> Results:
    """With a bar and the time left, on stderr."""
    from ros2_rfm_serving.reproductions.kairos.claims import Results
    from ros2_rfm_serving.reproductions.kairos.sweep import load_cells

    calls = [partial(_run, point, folder, setting) for point in points]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("left:"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        runs = {run.point: run for run in progress.track(in_parallel(calls, processes), total=len(calls), description="replays")}
    cells = load_cells(folder / SWEEP)
    return Results(
        runs={point: runs[point] for point in points},
        cells=[cell for cell in cells if not cell.noise],
        disturbed=[cell for cell in cells if cell.noise],
    )
