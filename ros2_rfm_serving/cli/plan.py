"""`rfm plan`: the schedule that a factory would get, and how far it is from the best possible."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ros2_rfm_serving.operate.inputs import (
    Arrivals,
    Budget,
    CatalogueFile,
    ChartFile,
    FactoryFile,
    Inputs,
    JsonFlag,
    Policy,
    Profiles,
    RateControl,
    Robots,
    Servers,
    console,
    load_inputs,
    print_json,
    solve,
)

if TYPE_CHECKING:
    from ros2_rfm_serving.scheduler import Solution


def plan(
    file: FactoryFile,
    policy: Policy = "best",
    robots: Robots = None,
    servers: Servers = None,
    rate_control: RateControl = None,
    arrivals: Arrivals = None,
    compare: Annotated[bool, typer.Option("--compare", help="One line per policy instead")] = False,
    budget: Budget = None,
    chart: ChartFile = None,
    json: JsonFlag = False,
    profiles: Profiles = None,
    catalogue: CatalogueFile = None,
) -> None:
    """Shows the schedule that a factory would get: placement, routes, rates, latencies against their SLOs.

    The exit status is 1 when the factory cannot be served, with what would make it possible.

    Examples:  rfm plan config/rosa/p4.yaml --robots 64 --chart p4.png

               rfm plan config/rosa/p4.yaml --compare
    """
    inputs = load_inputs(file, profiles, catalogue, robots=robots, servers=servers)
    if compare:
        feasible = _compare(inputs, rate_control, budget, arrivals, json)
        raise typer.Exit(0 if feasible else 1)
    solution = solve(inputs, policy, rate_control, budget, arrivals=arrivals)
    if chart and solution.servers:
        _draw(solution, inputs, chart)
    if json:
        print_json(solution.to_json())
    else:
        from ros2_rfm_serving.reports.plan_tables import plan_report

        console.print(plan_report(solution, inputs.factory, inputs.profile))
    raise typer.Exit(0 if solution.feasible else 1)


def _compare(inputs: Inputs, rate_control: bool | None, work: float | None, arrivals: str | None, json: bool) -> bool:
    """True when at least one policy serves the factory."""
    from ros2_rfm_serving.reports.plan_tables import comparison
    from ros2_rfm_serving.scheduler import POLICIES

    solutions = {policy: solve(inputs, policy, rate_control, work, explained=False, arrivals=arrivals) for policy in POLICIES}
    if json:
        print_json({"policies": [solution.to_json() for solution in solutions.values()]})
    else:
        console.print(comparison(solutions, inputs.factory))
    return any(solution.feasible for solution in solutions.values())


def _draw(solution: Solution, inputs: Inputs, file: Path) -> None:
    from ros2_rfm_serving.reports import charts

    charts.save(charts.plan_chart(solution, inputs.profile, inputs.factory.name), file)
