"""`rfm capacity`: how many GPUs for these robots, and how many robots for these GPUs?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

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
        print_json(_figures(question, answers))
    else:
        _show(question, answers)
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


def _show(question: Question, answers: Sequence[Answer]) -> None:
    factory = question.inputs.factory
    for task, needs in question.required.items():
        console.print(f"every robot of {task}: at least {needs.rate_hz:.2f} actions/s ({needs.source}), every SLO met")
    table = Table(title="capacity", title_justify="left")
    table.add_column("question", overflow="fold")
    for name in (f"policy {question.policy}", "Remote-RTC P10", "ROSA's accounting"):
        table.add_column(name, justify="right")
    fleet = ", ".join(f"{entry.num_robots} x {entry.task}" for entry in factory.robot_fleet)
    cluster = ", ".join(f"{group.num_servers} x {group.gpu_type}" for group in factory.server_cluster)
    first = " of the first group" if len(factory.server_cluster) > 1 else ""
    table.add_row(f"GPUs{first} for {fleet}", *_numbers(answers[0]))
    table.add_row(f"robots for {cluster}", *_numbers(answers[1]))
    console.print(table)
    console.print(_formulas(question))
    for answer in answers:
        for style, line in _remarks(answer):
            console.print(Text(line, style))


def _numbers(answer: Answer) -> list[str]:
    return [str(answer.found or "none"), *(f"{x:.0f}" if math.isfinite(x) else "none" for x in (answer.remote_rtc, answer.rosa))]


def _remarks(answer: Answer) -> list[tuple[str, str]]:
    remarks = []
    if answer.found is None:
        tried = f"{min(answer.trials)} to {max(answer.trials)}"
        remarks.append(("red", f"no number of {answer.of} is enough (tried {tried}); ask for a lower --rate or looser SLOs"))
    elif answer.of == "robots" and len(answer.factory.robot_fleet) > 1:
        fleet = ", ".join(f"{entry.num_robots} x {entry.task}" for entry in answer.factory.robot_fleet)
        remarks.append(("", f"the fleet of {answer.found}: {fleet}"))
    if not answer.monotone:
        trials = ", ".join(f"{number}: {'yes' if holds else 'no'}" for number, holds in answer.trials.items())
        remarks.append(
            ("yellow", f"note: the answer is not monotone in the number of {answer.of}, the solver is a heuristic ({trials})")
        )
    return remarks


def _formulas(question: Question) -> Table:
    table = Table(title="closed formulas, declared fleet: GPUs per model", title_justify="left")
    table.add_column("model")
    columns = ("robots", "rate\n(Hz)", "alone\n(ms)", "Remote-RTC\nP10", "max at SLO\n(Hz)", "ROSA's\naccounting")
    for name in columns:
        table.add_column(name, justify="right")
    for load in question.loads(question.inputs.factory):
        table.add_row(
            load.model,
            str(load.num_robots),
            f"{load.rate_hz:.1f}",
            f"{1e3 * load.service_s:.0f}",
            *(f"{x:.0f}" if math.isfinite(x) else "none" for x in (load.remote_rtc_servers,)),
            f"{load.slo_rate_hz:.1f}",
            *(f"{x:.0f}" if math.isfinite(x) else "none" for x in (load.rosa_servers,)),
        )
    return table


def _figures(question: Question, answers: Sequence[Answer]) -> dict[str, Any]:
    return {
        "policy": question.policy,
        "required": {task: {"action_rate_hz": needs.rate_hz, "source": needs.source} for task, needs in question.required.items()},
        **{answer.of: _answer_json(answer) for answer in answers},
        "models": [
            {
                "model": load.model,
                "num_robots": load.num_robots,
                "rate_hz": load.rate_hz,
                "service_ms": 1e3 * load.service_s,
                "max_rate_at_slo_hz": load.slo_rate_hz,
                "remote_rtc_p10_servers": _finite(load.remote_rtc_servers),
                "rosa_servers": _finite(load.rosa_servers),
            }
            for load in question.loads(question.inputs.factory)
        ],
    }


def _answer_json(answer: Answer) -> dict[str, Any]:
    return {
        "declared": answer.declared,
        "answer": answer.found,
        "fleet": {entry.task: entry.num_robots for entry in answer.factory.robot_fleet},
        "remote_rtc_p10": _finite(answer.remote_rtc),
        "rosa_accounting": _finite(answer.rosa),
        "monotone": answer.monotone,
        "tried": [{answer.of: number, "sufficient": holds} for number, holds in answer.trials.items()],
    }


def _finite(value: float) -> int | None:
    return int(value) if math.isfinite(value) else None


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
