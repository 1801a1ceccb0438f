"""`rfm simulate --guests`: robots that come and go, beside the declared ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Group, RenderableType

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.plain import PlainTable
from ros2_rfm_serving.operate.inputs import console, print_json

if TYPE_CHECKING:
    from ros2_rfm_serving.operate.inputs import Inputs
    from ros2_rfm_serving.simulation import Conditions, DayReport, GuestFigures, Report, Turnover, Visits, Watched

USUAL = "per_hour=6,stay_min=60"
Told = Callable[[float], None]
"""The virtual time."""


class Times(NamedTuple):
    seconds: float
    warm_up_s: float
    seed: int


# --- what is asked ---------------------------------------------------------------------------------------------------------


def turnover_of(text: str) -> Turnover:
    """Raises: `ConfigurationError` naming the option and what it takes."""
    from ros2_rfm_serving.simulation import Turnover

    given = {"per_hour": 6.0, "stay_min": 60.0, "silent": 0.0}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in given or not math.isfinite(number(value)):
            fix = "write per_hour=6,stay_min=60,silent=0.1"
            raise ConfigurationError(f"cannot be read: {part!r}", key="--guests", fix=fix)
        given[name] = number(value)
    return Turnover(arrivals_hz=given["per_hour"] / 3600.0, stay_s=60.0 * given["stay_min"], crashed=given["silent"])


def number(text: str) -> float:
    """NaN when it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def check_unused(given: Mapping[str, object]) -> None:
    """Raises: `ConfigurationError` for an option that only one plan has."""
    for option, value in given.items():
        if value is not None:
            problem = "is of one plan, and with --guests the scheduler makes many"
            raise ConfigurationError(problem, key=option, fix="leave it out, or --guests")


# --- what is done ----------------------------------------------------------------------------------------------------------


def lived(
    inputs: Inputs, turnover: Turnover, hours: float, seed: int, policy: str, budget: float | None, progress: Told
) -> DayReport:
    """The scheduler alone."""
    from ros2_rfm_serving.simulation import live_through

    return live_through(
        inputs.factory,
        inputs.profile,
        inputs.catalogue,
        turnover,
        hours=hours,
        seed=seed,
        policy=policy,
        work=budget,
        progress=progress,
    )


def visited(
    inputs: Inputs, turnover: Turnover, times: Times, conditions: Conditions, policy: str, budget: float | None, progress: Told
) -> Watched:
    """Robots, servers and the scheduler."""
    from ros2_rfm_serving.simulation import simulate_watched

    return simulate_watched(
        inputs.factory,
        inputs.catalogue,
        inputs.profile,
        seconds=times.seconds,
        seed=times.seed,
        warm_up_s=times.warm_up_s,
        conditions=conditions,
        policy=policy,
        work=budget,
        turnover=turnover,
        progress=progress,
    )


# --- what is shown ---------------------------------------------------------------------------------------------------------


def show_day(report: DayReport, *, json: bool) -> None:
    if json:
        print_json(report.to_json())
        return
    table = PlainTable("guests", "", title=f"{report.hours:g} hours")
    for name, figure in (
        *_became(report),
        ("others' rates or batch sizes changed", f"for {report.adjusted}"),
        ("schedules", f"{report.schedules}, {report.migrations} of them with other models on servers"),
        ("robots", f"{report.most_robots} at the most"),
        ("actions", f"{report.actions:.0f} (weighted, predicted), {report.lost_actions:.0f} of them lost while models load"),
    ):
        table.add_row(name, figure)
    console.print(table)


def _became(guests: GuestFigures) -> Iterator[tuple[str, str]]:
    """What of guests."""
    yield "admitted at once", str(guests.at_once)
    yield "admitted with another plan", str(guests.planned_anew)
    yield "refused", ", ".join(f"{count} for {task}" for task, count in guests.refused.items()) or "0"
    yield "said goodbye", str(guests.left)
    yield "fell silent", str(guests.silent)
    yield "waited for an answer", f"{guests.longest_wait_s:.1f} s at the most"


def show_visited(watched: Watched, tables: Callable[[Report, float], RenderableType], *, json: bool) -> None:
    """tables: of any simulation."""
    if json:
        print_json(watched.report.to_json())
        return
    assert watched.report.visits is not None
    console.print(tables(watched.report, watched.scheduler.brain.fleet.actions_hz()))
    console.print(_visit_tables(watched.report.visits))


def _visit_tables(visits: Visits) -> RenderableType:
    guests = PlainTable("guests", "", title="robots that come and go")
    for name, figure in (*_became(visits.guests), ("schedules", str(visits.schedules))):
        guests.add_row(name, figure)
    columns = ("task", "robots", "without a chunk", "first chunk s", "longest gap s", "slowest chunks/s")
    stays = PlainTable(*columns, title="chunks of declared robots and guests")
    for task, stay in visits.stays.items():
        figures = (f"{value:.2f}" for value in (stay.longest_start_s, stay.longest_gap_s, stay.slowest_hz))
        stays.add_row(task, str(stay.robots), str(stay.without), *figures)
    return Group(guests, stays)
