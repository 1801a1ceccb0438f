"""`rfm plan`: the schedule that a factory would get, and how far it is from the best possible."""

from __future__ import annotations

import math
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

MOST_ALTERNATIVES, LEAST_COST_HZ = 4, 5e-3
BY_CURVES = ", by the profile's curves; how far this plan goes its robots' own queues say"


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
    explain: Annotated[
        str,
        typer.Option("--explain", metavar="ROBOT", help="Why this robot is served there, at that rate, and what else would cost"),
    ] = "",
    json: JsonFlag = False,
    profiles: Profiles = None,
    catalogue: CatalogueFile = None,
) -> None:
    """Shows the schedule that a factory would get: placement, routes, rates, latencies against their SLOs.

    The exit status is 1 when the factory cannot be served, with what would make it possible.

    Examples:  rfm plan config/rosa/p4.yaml --robots 64 --chart p4.png

               rfm plan config/rosa/p4.yaml --compare

               rfm plan config/rosa/p4.yaml --explain push_1
    """
    inputs = load_inputs(file, profiles, catalogue, robots=robots, servers=servers)
    if compare:
        feasible = _compare(inputs, rate_control, budget, arrivals, json)
        raise typer.Exit(0 if feasible else 1)
    solution = solve(inputs, policy, rate_control, budget, arrivals=arrivals)
    if chart and solution.servers:
        _draw(solution, inputs, chart)
    if explain and solution.servers:
        _explain(solution, inputs, explain, json)
    elif json:
        print_json(solution.to_json())
    else:
        from ros2_rfm_serving.reports.plan_tables import plan_report

        console.print(plan_report(solution, inputs.factory, inputs.profile))
    raise typer.Exit(0 if solution.feasible else 1)


def _compare(inputs: Inputs, rate_control: bool | None, work: float | None, arrivals: str | None, json: bool) -> bool:
    """Print a comparison of all policies; return whether at least one serves the factory."""
    from ros2_rfm_serving.reports.plan_tables import comparison
    from ros2_rfm_serving.scheduler import POLICIES

    solutions = {policy: solve(inputs, policy, rate_control, work, explained=False, arrivals=arrivals) for policy in POLICIES}
    if json:
        print_json({"policies": [solution.to_json() for solution in solutions.values()]})
    else:
        console.print(comparison(solutions, inputs.factory))
    return any(solution.feasible for solution in solutions.values())


def _explain(solution: Solution, inputs: Inputs, robot: str, json: bool) -> None:
    from ros2_rfm_serving.scheduler import fleet_of
    from ros2_rfm_serving.scheduler.explain_route import choices

    fleet = fleet_of(inputs.factory, solution, inputs.factory.robots, inputs.profile, inputs.catalogue, epoch=1)
    found = choices(fleet, robot)
    if json:
        print_json({"robot": robot, "choices": [choice.to_json() for choice in found]})
        return
    for choice in found:
        console.print(f"[b]{choice.component}[/] of {robot} on [b]{choice.server}[/], {choice.rate_hz:.2f} requests/s")
        console.print(f"  why there: {choice.why_server}", soft_wrap=True)
        console.print(f"  why that rate: {choice.why_rate}", soft_wrap=True)
        for other in choice.alternatives[:MOST_ALTERNATIVES]:
            console.print(f"  {other.what}: {_cost(other.cost_hz)}{BY_CURVES if other.by_curves else ''}", soft_wrap=True)


def _cost(cost_hz: float) -> str:
    if cost_hz == math.inf:
        return "not possible, a promise would be broken"
    if abs(cost_hz) < LEAST_COST_HZ:
        return "as good; it stays where it is"
    return (
        f"the factory would lose {cost_hz:.2f} actions/s"
        if cost_hz > 0
        else f"better by {-cost_hz:.2f} actions/s with all others as they are"
    )


def _draw(solution: Solution, inputs: Inputs, file: Path) -> None:
    from ros2_rfm_serving.reports import charts

    charts.save(charts.plan_chart(solution, inputs.profile, inputs.factory.name), file)
