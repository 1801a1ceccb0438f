"""`rfm reproduce rosa`: the paper's factories, planned and run in virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lab.reproductions.claims import claim_row, claims_table
from lab.reproductions.files import make_folder, write_rows
from lab.reproductions.runs import Job, in_parallel
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.operate.inputs import console, load_inputs, with_system1
from ros2_rfm_serving.reports.charts import require_matplotlib
from ros2_rfm_serving.shipped import shipped

if TYPE_CHECKING:
    from lab.reproductions.rosa.claims import Results
    from lab.reproductions.rosa.runs import Batching, Inputs, Point, Run, Setting, Sizing

FIGURES = ("6", "7", "8", "9", "10", "11", "12", "14", "tables", "policies")
LAWS = "laws"
"""Figure that is not in the paper, and not part of `all`: no plan is made for it."""
ROBOTS, PERIODS_MS = (1, 2, 4, 8, 12, 16), (50.0, 100.0, 200.0, 500.0, 1000.0)
"""Numbers of robots and action periods of Fig. 14."""
QUICK_FLEETS, QUICK_S = (8, 32), 10.0
BATCHING_S = 20.0
"""Duration of a run of Fig. 14, whose single server settles fast."""
WORK = 5.0
"""Budget of every plan."""


def rosa(
    figure: Annotated[
        str,
        typer.Option(
            metavar="|".join((*FIGURES, "all", LAWS)),
            help="policies: every policy, capped and not; laws: the service laws that honour most of the paper",
        ),
    ] = "all",
    seconds: Annotated[float, typer.Option(min=1, help="Virtual time to measure per run, after the warm-up")] = 60.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same figures")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes")] = 2,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Data (CSV) and plots (PNG) go there")] = Path("reproductions/rosa"),
    quick: Annotated[bool, typer.Option("--quick", help="Two fleet sizes, 10 s each: is it alive?")] = False,
    profiles: Annotated[Path | None, typer.Option(metavar="DIR", help="With models.yaml; default: the shipped ones")] = None,
    gpu_type: Annotated[str, typer.Option(help="In place of the workloads' own")] = "",
    system1: Annotated[str, typer.Option(help="Action model in place of the workloads' own")] = "",
) -> None:
    """ROSA §4: Figures 6 to 12 and 14, Tables 1 to 3, and each claim beside ours.

    Example:  rfm reproduce rosa --figure 10 --out /tmp/rosa
    """
    from lab.reproductions.rosa import data, plots
    from lab.reproductions.rosa.claims import claims_of
    from lab.reproductions.rosa.runs import FLEETS, MIXED, SINGLE, Setting

    if figure not in (*FIGURES, "all", LAWS):
        fix = did_you_mean(figure, (*FIGURES, "all", LAWS))
        raise ConfigurationError(f"there is no {figure!r}", key="--figure", fix=fix)
    require_matplotlib()  # errors at the end of a long run are found at its beginning
    make_folder(out)
    setting = Setting(seconds=QUICK_S if quick else seconds, seed=seed, work=WORK)
    given = Given(profiles, gpu_type, system1)
    if figure == LAWS:
        _laws(setting, given, out, quick)
        return
    figures = FIGURES if figure == "all" else (figure,)
    results = _results(list(_jobs(figures, QUICK_FLEETS if quick else FLEETS, setting, given)), jobs)
    factories = {workload: _inputs(workload, given).factory for workload in (*SINGLE, *MIXED)}
    for name in figures:
        data.write(name, results, factories, out)
        plots.draw(name, results, out)
    claims = claims_of(results)
    if figure == "all":
        write_rows(out / "claims.csv", map(claim_row, claims))
    console.print(claims_table(claims))
    console.print(f"data and plots: {out}")


# --- running ---------------------------------------------------------------------------------------------------------------


class Given(NamedTuple):
    """Replacements of the shipped inputs."""

    profiles: Path | None = None
    gpu_type: str = ""
    system1: str = ""


def _jobs(figures: Sequence[str], fleets: Sequence[int], setting: Setting, given: Given) -> Iterator[Job]:
    """Yield the longest jobs first, so that no process is left alone with one at the end."""
    from lab.reproductions.rosa.runs import SHARED, SINGLE, points_of

    points = dict.fromkeys(point for figure in figures for point in points_of(figure, fleets))
    for point in sorted(points, key=lambda p: (p.num_robots, p.policy == "best"), reverse=True):
        yield partial(_run, point, setting, given)
    if "11" in figures:
        for workload, number, policy in product(SINGLE, fleets, SHARED):
            yield partial(_size, workload, number, policy, setting, given)
    if "14" in figures:
        for number, period_ms in product(ROBOTS, PERIODS_MS):
            yield partial(_batch, number, period_ms, setting, given)


@cache
def _inputs(workload: str, given: Given) -> Inputs:
    """Read the inputs once per process."""
    from lab.reproductions.rosa.runs import Inputs

    read = load_inputs(shipped("config", "rosa", f"{workload}.yaml"), given.profiles)
    return Inputs(factory=with_system1(read.factory, given.system1, given.gpu_type), profile=read.profile, catalogue=read.catalogue)


def _run(point: Point, setting: Setting, given: Given) -> Run:
    from lab.reproductions.rosa.runs import run

    return run(point, _inputs(point.workload, given), setting)


def _size(workload: str, num_robots: int, policy: str, setting: Setting, given: Given) -> Sizing:
    from lab.reproductions.rosa.runs import gpus_to_match

    return gpus_to_match(workload, num_robots, policy, _inputs(workload, given), setting)


def _batch(num_robots: int, period_ms: float, setting: Setting, given: Given) -> Batching:
    from lab.reproductions.rosa.runs import batching_decision

    short = replace(setting, seconds=min(setting.seconds, BATCHING_S))
    return batching_decision(num_robots, period_ms, _inputs("p1", given), short)


def _results(jobs: Sequence[Job], processes: int) -> Results:
    """Run the jobs with a progress bar and the time left, on stderr."""
    from lab.reproductions.rosa.claims import Results
    from lab.reproductions.rosa.runs import Batching, Run, Sizing

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("left:"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        done = list(progress.track(in_parallel(jobs, processes), total=len(jobs), description="runs"))
    runs = sorted((d for d in done if isinstance(d, Run)), key=_order)
    return Results(
        runs={run.point: run for run in runs},
        sizings=tuple(sorted((d for d in done if isinstance(d, Sizing)), key=lambda s: (s.workload, s.num_robots, s.policy))),
        batchings=tuple(sorted((d for d in done if isinstance(d, Batching)), key=lambda b: (b.num_robots, b.period_ms))),
    )


def _laws(setting: Setting, given: Given, out: Path, quick: bool) -> None:
    from lab.reproductions.rosa import derivation
    from lab.reproductions.rosa.fit import STARTS

    derived = derivation.derive(_inputs("p4", given), setting, STARTS[:1] if quick else STARTS)
    derivation.write(derived, out)
    console.print(derivation.table(derived))
    for line in derivation.lines(derived):
        console.print(line)
    console.print(f"data: {out}")


def _order(run: Run) -> tuple[Any, ...]:
    p = run.point
    return p.workload, p.num_robots, p.allocation, p.policy, not p.capped


# --- what is shown ---------------------------------------------------------------------------------------------------------
