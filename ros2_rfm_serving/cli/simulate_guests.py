"""`rfm simulate --guests`: robots that come and go, beside the declared ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from ros2_rfm_serving.cli.simulate_plan import Asked, ProgressBar, Times, tables
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.plain import PlainTable
from ros2_rfm_serving.operate.inputs import console, print_json

if TYPE_CHECKING:
    from ros2_rfm_serving.simulation import DayReport, DynamicRobotFigures, ScheduledReport, SimulationConditions, Turnover, Visits

USUAL = "per_hour=6,stay_min=60"


# --- what is asked ---------------------------------------------------------------------------------------------------------


def turnover_of(text: str) -> Turnover:
    """Parse the turnover. Raises: `ConfigurationError` naming the option and its format."""
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
    """Return the number; NaN when the text is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


# --- what is done ----------------------------------------------------------------------------------------------------------


def live(asked: Asked, hours: float, turnover: Turnover) -> None:
    """Simulate the scheduler alone."""
    from ros2_rfm_serving.simulation import live_through

    inputs = asked.inputs
    given = (inputs.factory, inputs.profile, inputs.catalogue, turnover)
    with ProgressBar(3600.0 * hours) as progress:
        report = live_through(*given, hours=hours, seed=asked.seed, policy=asked.policy, work=asked.work, progress=progress.told)
    _show_day(report, json=asked.json)


def visit(asked: Asked, times: Times, conditions: SimulationConditions, turnover: Turnover) -> None:
    """Simulate robots, servers and the scheduler."""
    from ros2_rfm_serving.simulation import simulate_watched

    inputs = asked.inputs
    with ProgressBar(times.all_s) as progress:
        watched = simulate_watched(
            inputs.factory,
            inputs.catalogue,
            inputs.profile,
            seconds=times.seconds,
            warm_up_s=times.warm_up_s,
            seed=asked.seed,
            policy=asked.policy,
            work=asked.work,
            conditions=conditions,
            turnover=turnover,
            progress=progress.told,
        )
    _show_visited(watched, json=asked.json)


# --- what is shown ---------------------------------------------------------------------------------------------------------


def _show_day(report: DayReport, *, json: bool) -> None:
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


def _became(guests: DynamicRobotFigures) -> Iterator[tuple[str, str]]:
    """Yield the figures of guests."""
    yield "admitted at once", str(guests.at_once)
    yield "admitted with another plan", str(guests.planned_anew)
    yield "refused", ", ".join(f"{count} for {task}" for task, count in guests.refused.items()) or "0"
    yield "said goodbye", str(guests.left)
    yield "fell silent", str(guests.silent)
    yield "waited for an answer", f"{guests.longest_wait_s:.1f} s at the most"


def _show_visited(watched: ScheduledReport, *, json: bool) -> None:
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
