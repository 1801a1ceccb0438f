"""`rfm bench scheduler`: work of `best`, and its distance from the bound, as factories grow."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.table import Table

from ros2_rfm_serving.errors import ConfigurationError, ScheduleError
from ros2_rfm_serving.operate.inputs import console, write_text
from ros2_rfm_serving.operate.progress import spinner

if TYPE_CHECKING:
    from ros2_rfm_serving.scheduler import Solution
    from ros2_rfm_serving.simulation.random_factories import RandomFactory

SIZES = {(8, 64, 4, 3): 40, (32, 256, 4, 4): 20, (64, 1024, 8, 4): 10, (128, 2048, 8, 8): 6, (256, 4096, 16, 8): 5}
"""(servers, robots, classes, models) of random factories -> their number. Each size takes about half a minute of one core."""
NUM_QUICK = 2


class Solved(NamedTuple):
    case: RandomFactory
    solution: Solution
    cpu_s: float
    """CPU time of the process, which does not wait: other load of the machine does not increase it."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Figure of every solved factory."""

    heading: str
    of: Callable[[Solved], float]
    scale: float = 1.0
    """Factor from the figure to the unit of the heading."""
    form: str = ".2f"


def _admission_s(solved: Solved) -> float:
    """Return the median over the classes of the CPU time to admit another robot with the placement kept, or to refuse it.

    It is some ten times longer where the robot fits nowhere unless others slow down: then the rates of all classes are searched
    anew.
    """
    from ros2_rfm_serving.factory import RobotEntry
    from ros2_rfm_serving.scheduler import fleet_of

    case = solved.case
    fleet = fleet_of(case.factory, solved.solution, case.factory.robots, case.profile, None, epoch=1)
    times_s = []
    for i, task in enumerate(case.factory.tasks):  # one of each, because a refusal is remembered
        started_s = time.process_time()
        with contextlib.suppress(ScheduleError):
            fleet.admit(RobotEntry(name=f"late_{i}", task=task, index=0))
        times_s.append(time.process_time() - started_s)
    return median(times_s)


MEASURES = {
    "cpu_s": Measure(heading="solved in (s of one core)", of=lambda solved: solved.cpu_s),
    "work": Measure(heading="work", of=lambda solved: solved.solution.work),
    "gap": Measure(heading="gap to the bound (%)", of=lambda solved: solved.solution.gap_by_curves, scale=100, form=".1f"),
    "admission_s": Measure(heading="admission of one robot (ms)", of=_admission_s, scale=1e3),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """Results of all factories of one size."""

    size: str
    servers: int
    seeds: list[int] = field(default_factory=list)
    samples: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in MEASURES})
    """One value per feasible factory."""
    cut_short: list[int] = field(default_factory=list)
    """Seeds for which the solver's work budget ended its search."""
    failed: dict[int, str] = field(default_factory=dict)
    """Seed -> reason why there is no schedule."""


def scheduler(
    quick: Annotated[bool, typer.Option("--quick", help="The two smallest sizes only")] = False,
    repetitions: Annotated[
        int | None, typer.Option(min=1, help="Random factories of every size (default: 40 of the smallest to 5 of the largest)")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the first factory")] = 0,
    policy: Annotated[str, typer.Option(help="Policy to measure")] = "best",
    budget: Annotated[
        float | None, typer.Option(min=0, metavar="WORK", help="Of the solver: 1 takes one core about a second")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the growth (needs matplotlib)")] = None,
) -> None:
    """Work and gap to the bound over random factories: median, least and most.

    Example:  rfm bench scheduler --quick
    """
    _check_before_measuring(plot)
    sizes = islice(SIZES.items(), NUM_QUICK if quick else None)
    rows = [_measure(size, range(seed, seed + (repetitions or number)), policy, budget) for size, number in sizes]
    console.print(_table(rows))
    for row in rows:
        _print_troubles(row)
    if json_file:
        write_text(json_file, json.dumps([_figures(row) for row in rows], indent=1) + "\n")
    if plot:
        from ros2_rfm_serving.reports import charts

        solved = [row for row in rows if row.samples["gap"]]
        panels = [(m.heading, [[m.scale * x for x in row.samples[name]] for row in solved]) for name, m in MEASURES.items()]
        charts.save(charts.growth_chart([row.servers for row in solved], panels), plot)
    if any(row.failed for row in rows):
        raise typer.Exit(1)


def _check_before_measuring(plot: Path | None) -> None:
    """Check first what would otherwise fail at the end of a long measurement."""
    if plot:
        from ros2_rfm_serving.reports import charts

        charts.figure_of(1, 1, 1)
        if not plot.parent.is_dir():
            raise ConfigurationError(f"the folder of {plot} does not exist", key="--plot", fix="create it")


def _measure(size: tuple[int, int, int, int], seeds: Sequence[int], policy: str, work: float | None) -> Row:
    from ros2_rfm_serving.reports.plan_tables import collapsed
    from ros2_rfm_serving.scheduler import plan_factory
    from ros2_rfm_serving.simulation.random_factories import Size, random_factory

    servers, robots, classes, models = size
    of = Size(servers=servers, robots=robots, classes=classes, models=models)
    row = Row(size=str(of), servers=servers, seeds=list(seeds))
    for seed in seeds:
        case = random_factory(of, seed)
        with spinner(f"{of}, factory {seed}"):
            started_s = time.process_time()
            solution = plan_factory(case.factory, case.profile, policy=policy, work=work, explained=False)
            solved = Solved(case, solution, time.process_time() - started_s)
        if not solution.feasible:
            row.failed[seed] = "; ".join(collapsed(solution.problems))
            continue
        for name, measure in MEASURES.items():
            row.samples[name].append(measure.of(solved))
        if not solution.complete:
            row.cut_short.append(seed)
    return row


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="scheduler: median (least to most) over random factories", title_justify="left")
    table.add_column("factory")
    for heading in ("factories", *(measure.heading for measure in MEASURES.values())):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(row.size, str(len(row.seeds)), *(_spread(m, row.samples[name]) for name, m in MEASURES.items()))
    return table


def _spread(measure: Measure, samples: Sequence[float]) -> str:
    if not samples:
        return "-"
    middle, least, most = (format(measure.scale * x, measure.form) for x in (median(samples), min(samples), max(samples)))
    return f"{middle} ({least} to {most})"


def _print_troubles(row: Row) -> None:
    if row.cut_short:
        console.print(
            f"{row.size}: the budget ended the search for {len(row.cut_short)} of {len(row.seeds)}, the best found counts"
        )
    for seed, problem in row.failed.items():
        console.print(f"{row.size}, factory {seed}: no schedule: {problem}", style="red")


def _figures(row: Row) -> dict[str, Any]:
    return {
        "size": row.size,
        "seeds": row.seeds,
        **{name: {"median": median(samples) if samples else None, "samples": samples} for name, samples in row.samples.items()},
        "cut_short": row.cut_short,
        "failed": {str(seed): problem for seed, problem in row.failed.items()},
    }
