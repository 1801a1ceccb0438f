"""Results of `rfm capacity` as tables and as JSON, beside those of the closed formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from ros2_rfm_serving.monitoring.plain import PlainTable

if TYPE_CHECKING:
    from ros2_rfm_serving.operate.capacity import Answer, Question

NONE = "none"


def report(question: Question, answers: Sequence[Answer]) -> Group:
    """Return the tables of `rfm capacity`."""
    needs = [
        Text(f"every robot of {task}: at least {needs.rate_hz:.2f} actions/s ({needs.source}), every SLO met")
        for task, needs in question.required.items()
    ]
    remarks = [Text(line, style) for answer in answers for style, line in _remarks(answer)]
    return Group(*needs, _answers(question, answers), _formulas(question), *remarks)


def _answers(question: Question, answers: Sequence[Answer]) -> PlainTable:
    factory = question.inputs.factory
    table = PlainTable(title="capacity", title_justify="left")
    table.add_column("question", overflow="fold")
    for name in (f"policy {question.policy}", "Remote-RTC P10", "ROSA's accounting"):
        table.add_column(name, justify="right")
    fleet = ", ".join(f"{entry.num_robots} x {entry.task}" for entry in factory.robot_fleet)
    cluster = ", ".join(map(str, factory.server_cluster))
    first = " of the first group" if len(factory.server_cluster) > 1 else ""
    table.add_row(f"GPUs{first} for {fleet}", *_numbers(answers[0]))
    table.add_row(f"robots for {cluster}", *_numbers(answers[1]))
    return table


def _numbers(answer: Answer) -> list[str]:
    return [str(answer.found or NONE), _count(answer.remote_rtc), _count(answer.rosa)]


def _count(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else NONE


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


def _formulas(question: Question) -> PlainTable:
    table = PlainTable(title="closed formulas, declared fleet: GPUs per model", title_justify="left")
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
            _count(load.remote_rtc_servers),
            f"{load.slo_rate_hz:.1f}",
            _count(load.rosa_servers),
        )
    return table


def figures(question: Question, answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the data of `rfm capacity --json`."""
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
