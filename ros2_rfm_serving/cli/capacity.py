"""`rfm capacity`: how many GPUs for these robots, and how many robots for these GPUs?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ros2_rfm_serving.operate.inputs import (
    Budget,
    CatalogueFile,
    ChartFile,
    FactoryFile,
    JsonFlag,
    Policy,
    Profiles,
    Robots,
    Servers,
    console,
    load_inputs,
    print_json,
)

if TYPE_CHECKING:
    from ros2_rfm_serving.operate.capacity import Answer, Question, Say

CHART_POINTS = 9


def capacity(
    file: FactoryFile,
    rate: Annotated[float | None, typer.Option(min=1e-6, metavar="HZ", help="Actions/s that every robot must reach")] = None,
    policy: Policy = "best",
    robots: Robots = None,
    servers: Servers = None,
    rtt: Annotated[float, typer.Option(min=0, metavar="MS", help="Network round trip, for Remote-RTC's formula")] = 0.0,
    budget: Budget = None,
    chart: ChartFile = None,
    json: JsonFlag = False,
    profiles: Profiles = None,
    catalogue: CatalogueFile = None,
) -> None:
    """Answers: how many GPUs for the declared robots? How many robots (in the declared proportions) for the declared GPUs?

    Every SLO must be met, and every robot must reach an action rate: --rate, or its task's min_action_rate_hz, or 80 % of what
    an unloaded server allows. The exit status is 1 when one of the questions has no answer.

    Example:  rfm capacity config/rosa/p4.yaml --rate 2.5 --chart capacity.png
    """
    from ros2_rfm_serving.operate.capacity import Question
    from ros2_rfm_serving.reports import capacity_tables
    from ros2_rfm_serving.scheduler.sizing import required_rates

    inputs = load_inputs(file, profiles, catalogue, robots=robots, servers=servers)
    required = required_rates(inputs.factory, inputs.profile, rate)
    question = Question(inputs=inputs, required=required, policy=policy, work=budget, rtt_s=rtt / 1e3)
    with _progress() as progress:
        task = progress.add_task("")
        say: Say = lambda text: progress.update(task, description=text)  # noqa: E731
        answers = [question.servers(say), question.robots(say)]
        if chart:
            _draw(question, answers, chart, say)
    if json:
        print_json(capacity_tables.figures(question, answers))
    else:
        console.print(capacity_tables.report(question, answers))
    raise typer.Exit(0 if all(answer.found is not None for answer in answers) else 1)


def _progress() -> Progress:
    """Return a progress display on stderr, because stdout is for the answer."""
    columns = (SpinnerColumn(), TextColumn("planning with {task.description}"), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _draw(question: Question, answers: Sequence[Answer], file: Path, say: Say) -> None:
    from ros2_rfm_serving.reports import charts

    servers, robots = answers
    factory = question.inputs.factory
    panels = []
    for answer, sized in ((robots, factory.with_num_robots), (servers, factory.with_num_servers)):
        least = min(answer.trials) if answer.of == "servers" else len(factory.robot_fleet)
        points = charts.spread(least, 2 * max(answer.found or 0, answer.declared), CHART_POINTS)
        solutions = {}
        for number in points:
            say(f"{number} {answer.of}, for the chart")
            solutions[number] = question.solve(sized(number))
        panels.append((answer.of, solutions, answer.found))
    charts.save(charts.capacity_chart(panels, question.policy, factory.name), file)
