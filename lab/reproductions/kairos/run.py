"""`rfm reproduce kairos`: recorded tasks replayed against the model server in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lab.reproductions.claims import claims_table
from lab.reproductions.files import make_folder
from lab.reproductions.kairos.files import SWEEP, TRACES
from lab.reproductions.runs import in_parallel
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.operate.inputs import console
from ros2_rfm_serving.reports.charts import require_matplotlib

if TYPE_CHECKING:
    from lab.reproductions.kairos.claims import Results
    from lab.reproductions.kairos.points import Point, Run, Setting
    from lab.reproductions.kairos.recorded import Recorded

FIGURES = ("11", "12", "13", "14", "15", "16", "17", "refetch")
ALL = "all"
TASKS, QUICK_TASKS = 400, 40
NUM_SEEDS = 3


def kairos(
    figure: Annotated[str, typer.Option(metavar="|".join((*FIGURES, ALL)), help="11: the sweep; 12 holds Table 2")] = ALL,
    workload: Annotated[str, typer.Option(help="flow, images, diffusion, autoregressive, or all that were recorded")] = ALL,
    tasks: Annotated[int, typer.Option(min=1, help="Per replay and seed")] = TASKS,
    seed: Annotated[int, typer.Option(help="The same seed gives the same figures; two more follow it")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes")] = 2,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The page, data (CSV) and plots (PNG) go there")] = Path(
        "reproductions/kairos"
    ),
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help=f"Per workload a folder with {SWEEP} and {TRACES}; default: the shipped ones")
    ] = None,
    record: Annotated[
        int,
        typer.Option(min=0, metavar="EPISODES", help="First record both in Meta-World; goes on where that ended"),
    ] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="One seed, few tasks, two rates and fleets: is it alive?")] = False,
) -> None:
    """Kairos §5: Figures 11 to 17, Table 2, newer observations, and each claim beside ours.

    Examples:  rfm reproduce kairos --figure 12 --out /tmp/k   |   rfm reproduce kairos --workload flow --record 40 --out /tmp/k
    """
    from lab.reproductions.kairos import data as tables
    from lab.reproductions.kairos import plots
    from lab.reproductions.kairos.claims import claims_of
    from lab.reproductions.kairos.points import FLEETS, LOADS, SENSITIVE, Setting, points_of

    if figure not in (*FIGURES, ALL):
        raise ConfigurationError(f"there is no {figure!r}", key="--figure", fix=did_you_mean(figure, (*FIGURES, ALL)))
    require_matplotlib()  # errors at the end of a long run are found at its beginning
    make_folder(out)
    folder = data or (out if record else Path(__file__).with_name("recordings"))
    names = _workloads(workload, folder, record)
    figures = [name for name in FIGURES if figure in (name, ALL) and (name in FIGURES[:4] or SENSITIVE in names)]
    if not figures:
        raise ConfigurationError(
            f"figure {figure} is of {SENSITIVE!r} alone", key="--workload", fix=f"name {SENSITIVE} or leave it out"
        )
    setting = Setting(num_tasks=QUICK_TASKS if quick else tasks, seeds=(seed,) if quick else tuple(range(seed, seed + NUM_SEEDS)))
    loads, fleets = ((LOADS[0], LOADS[-1]), (FLEETS[0], FLEETS[-1])) if quick else (LOADS, FLEETS)
    points = {each: [point for name in names for point in points_of(each, name, loads, fleets)] for each in figures}
    points = {each: [p for p in of if p.horizon in _recorded(folder, p.workload).horizons] for each, of in points.items()}
    results = _results([point for of in points.values() for point in of], names, folder, setting, jobs)
    for each, of in points.items():
        tables.write(each, results, of, out)
        plots.draw(each, results, out)
    results = replace(results, runs=tables.written(out, figures))
    claims = claims_of(results)
    if figure == workload == ALL and not quick:  # the page shows every rate and fleet
        tables.write_page(results, claims, setting, out)
    for name, found in claims.items():
        console.print(name)
        console.print(claims_table(found))
    console.print(f"data and plots: {out}")


def _workloads(wanted: str, folder: Path, record: int) -> list[str]:
    """Return the recorded workloads, after recording if requested. Raises: `ConfigurationError`."""
    from lab.reproductions.kairos.record import record_into
    from lab.reproductions.kairos.workloads import WORKLOADS

    if wanted not in (*WORKLOADS, ALL):
        raise ConfigurationError(f"there is no {wanted!r}", key="--workload", fix=did_you_mean(wanted, (*WORKLOADS, ALL)))
    names = [name for name in WORKLOADS if wanted in (name, ALL)]
    for name in names if record else ():
        record_into(folder / name, WORKLOADS[name], record)
    found = [name for name in names if (folder / name / TRACES).is_file()]
    if not found:
        raise ConfigurationError(f"no {TRACES} of {', '.join(names)}", file=str(folder), fix="record with --record")
    return found


@cache
def _recorded(folder: Path, workload: str) -> Recorded:
    """Load recordings once per process."""
    from lab.reproductions.kairos.recorded import load
    from lab.reproductions.kairos.workloads import WORKLOADS

    return load(WORKLOADS[workload], folder / workload)


def _run(point: Point, folder: Path, setting: Setting) -> Run:
    from lab.reproductions.kairos.points import run

    return run(point, _recorded(folder, point.workload), setting)


def _results(points: Sequence[Point], names: Sequence[str], folder: Path, setting: Setting, processes: int) -> Results:
    """Run the replays with a progress bar and the time left, on stderr."""
    from lab.reproductions.kairos.claims import Results

    calls = [partial(_run, point, folder, setting) for point in dict.fromkeys(points)]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("left:"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        runs = {run.point: run for run in progress.track(in_parallel(calls, processes), total=len(calls), description="replays")}
    return Results(
        recorded={name: _recorded(folder, name) for name in names}, runs={point: runs[point] for point in dict.fromkeys(points)}
    )
