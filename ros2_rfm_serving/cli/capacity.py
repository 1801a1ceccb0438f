"""`rfm capacity`: how many GPUs for these robots, and how many robots for these GPUs?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ros2_rfm_serving.cli.inputs import (
    Budget,
    CatalogueFile,
    ChartFile,
    FactoryFile,
    Inputs,
    JsonFlag,
    Profiles,
    Robots,
    Servers,
    console,
    load_inputs,
    print_json,
)
from ros2_rfm_serving.cli.plan import Policy

if TYPE_CHECKING:
    from ros2_rfm_serving.cli.sizing import ModelLoad, Required
    from ros2_rfm_serving.factory import Factory
    from ros2_rfm_serving.scheduler import Solution

CHART_POINTS = 9
Say = Callable[[str], None]


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
    from ros2_rfm_serving.cli import capacity_tables
    from ros2_rfm_serving.cli.sizing import required_rates

    inputs = load_inputs(file, profiles, catalogue, robots=robots, servers=servers)
    required = required_rates(inputs.factory, inputs.profile, rate)
    question = Question(inputs=inputs, required=required, policy=policy, budget_s=budget, rtt_s=rtt / 1e3)
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


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Of one of the two questions."""

    of: str
    """`servers` or `robots`"""
    declared: int
    found: int | None
    trials: dict[int, bool]
    monotone: bool
    factory: Factory
    """With what was found."""
    remote_rtc: float
    rosa: float
    """The closed formulas' answers."""


@dataclass(frozen=True, kw_only=True)
class Question:
    inputs: Inputs
    required: dict[str, Required]
    policy: str
    budget_s: float | None
    rtt_s: float

    def servers(self, say: Say) -> Answer:
        """The fewest with which the declared fleet is served."""
        from ros2_rfm_serving.cli.sizing import MOST

        first, *others = self.inputs.factory.server_cluster
        least = max(1, self.inputs.factory.standby.num_servers + 1 - sum(group.num_servers for group in others))
        loads = self.loads(self.inputs.factory)
        return self._answer(
            "servers", first.num_servers, (least, MOST["servers"]), self.inputs.factory.with_num_servers, say,
            sum(load.remote_rtc_servers for load in loads), sum(load.rosa_servers for load in loads),
        )  # fmt: skip

    def robots(self, say: Say) -> Answer:
        """The largest fleet that the declared servers serve."""
        from ros2_rfm_serving.cli.sizing import MOST

        factory = self.inputs.factory
        least = len(factory.robot_fleet)
        return self._answer(
            "robots", len(factory.robots), (least, MOST["robots"]), factory.with_num_robots, say,
            self._formula_robots(lambda load: load.remote_rtc_servers), self._formula_robots(lambda load: load.rosa_servers),
        )  # fmt: skip

    def solve(self, factory: Factory, *, policy: str | None = None) -> Solution:
        from ros2_rfm_serving.scheduler import plan_factory

        return plan_factory(
            factory,
            self.inputs.profile,
            self.inputs.catalogue,
            policy=policy or self.policy,
            clock=time.monotonic,
            budget_s=self.budget_s,
            explained=False,
        )

    def loads(self, factory: Factory) -> list[ModelLoad]:
        from ros2_rfm_serving.cli.sizing import model_loads

        return model_loads(factory, self.inputs.profile, self.required, self.rtt_s)

    def _answer(
        self,
        of: str,
        declared: int,
        limits: tuple[int, int],
        sized: Callable[[int], Factory],
        say: Say,
        remote_rtc: float,
        rosa: float,
    ) -> Answer:
        from ros2_rfm_serving.cli.sizing import Search, demanding, reached

        def holds(number: int) -> bool:
            say(f"{number} {of}")
            return reached(self.solve(demanding(sized(number), self.required)), self.required)

        search = Search(holds, *limits, rising=of == "servers")
        search.run(declared)
        monotone = search.monotone(search.best())
        found = search.best()
        return Answer(
            of=of,
            declared=declared,
            found=found,
            trials=dict(sorted(search.trials.items())),
            monotone=monotone,
            factory=sized(found or declared),
            remote_rtc=remote_rtc,
            rosa=rosa,
        )

    def _formula_robots(self, servers_of: Callable[[ModelLoad], float]) -> float:
        """The largest fleet for which a formula asks for no more than the declared servers."""
        from ros2_rfm_serving.cli.sizing import MOST, Search

        factory = self.inputs.factory
        available = len(factory.servers) - factory.standby.num_servers

        def holds(number: int) -> bool:
            return sum(servers_of(load) for load in self.loads(factory.with_num_robots(number))) <= available

        least = len(factory.robot_fleet)
        return Search(holds, least, MOST["robots"], rising=False).run(len(factory.robots)) or math.nan


def _progress() -> Progress:
    """On stderr: stdout is the answer's."""
    columns = (SpinnerColumn(), TextColumn("planning with {task.description}"), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _draw(question: Question, answers: Sequence[Answer], file: Path, say: Say) -> None:
    from ros2_rfm_serving.cli import charts

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
