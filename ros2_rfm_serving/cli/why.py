"""`rfm why`: what is wrong with a running factory."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.board import AS_SAID
from ros2_rfm_serving.monitoring.plain import counted, plain
from ros2_rfm_serving.operate.running import console, prepare_environment, stop_signals
from ros2_rfm_serving.types.process_problems import CONFIGURATION
from ros2_rfm_serving.types.texts import without_numbers

if TYPE_CHECKING:
    from ros2_rfm_serving.monitoring.findings.finding import Finding
    from ros2_rfm_serving.monitoring.findings.look import Look

RUNBOOK = "docs/runbook.md"
MOST_ALIKE = 3
"""Findings of one cause that are printed in full."""
MOST_NAMED = 8
"""Robots or servers of findings that are alike, which a line lists."""


def why(
    name: Annotated[str, typer.Argument(help="A robot or a server; empty: the whole factory")] = "",
    seconds: Annotated[
        float, typer.Option(min=4.0, max=3600.0, help="Observe for this long, s; rare losses take longer to appear")
    ] = 6.0,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON")] = False,
    disk: Annotated[Path, typer.Option(help="Check the file system of this folder as well")] = Path("logs"),
    domain: Annotated[int, typer.Option(help="ROS domain; -1: ROS_DOMAIN_ID or 0")] = -1,
    namespace: Annotated[str, typer.Option(help="Namespace of the whole factory")] = "",
    wait: Annotated[float, typer.Option(min=0, help="Wait this long for a factory, s")] = 5.0,
) -> None:
    """Name the causes of what is wrong with a running factory, the gravest first, after observing it for a few seconds.

    Each cause comes with the evidence and a fix. docs/runbook.md describes all of them.

    Examples:  rfm why   |   rfm why push_1 --seconds 20   |   rfm why --json --domain 7

    Exit code: 0 nothing is wrong (notes such as `no task` may follow), 1 something is, 2 no factory is there, or no such robot or
    server.
    """
    prepare_environment(domain)
    from ros2_rfm_serving.monitoring.findings.causes import concerning, findings, is_trouble
    from ros2_rfm_serving.operate.looking import look_at

    stop = threading.Event()
    with stop_signals(stop):
        look = look_at(namespace, seconds, wait, disk, stop)
    found = findings(look)
    if name:
        _check(look, name)
        found = concerning(look, found, name)
    if as_json:
        print(json.dumps(_as_json(look, found)))
    else:
        for line in _lines(look, found):
            console.print(plain(line), soft_wrap=True)
    if any(map(is_trouble, found)):
        raise typer.Exit(1)


def _check(look: Look, name: str) -> None:
    """Raise `ConfigurationError` when there is no robot or server of this name."""
    unconfigured = {said.owner for said in look.diagnosed if said.name.endswith(f": {CONFIGURATION}")}
    there = sorted({*look.robots, *look.servers, *unconfigured})
    if name not in there:
        raise ConfigurationError(
            f"no robot or server is called {name!r}", fix=f"one of {', '.join(there) or 'none: nobody is there'}"
        )


def _as_json(look: Look, found: list[Finding]) -> dict[str, object]:
    from ros2_rfm_serving.monitoring.findings.causes import is_trouble

    return {
        "ok": not any(map(is_trouble, found)),
        "looked_s": round(look.seconds, 1),
        "robots": len(look.robots),
        "servers": len(look.servers),
        "findings": [asdict(one) for one in found],
        "doubts": look.doubts,
    }


def _lines(look: Look, found: list[Finding]) -> list[str]:
    from ros2_rfm_serving.monitoring.findings.causes import is_trouble

    seen = f"{counted(len(look.robots), 'robot')} and {counted(len(look.servers), 'server')}, seen for {look.seconds:.1f} s"
    doubts = [f"{doubt}; so are diagnoses (`says`)" if doubt == AS_SAID else doubt for doubt in look.doubts]
    notes = [f"note: {one.cause}: {'; '.join(one.evidence)}: {one.mend}" for one in found if not is_trouble(one)]
    troubles = [one for one in found if is_trouble(one)]
    if not troubles:
        return [f"nothing is wrong: {seen}", *notes, *doubts]
    lines: list[str] = []
    for place, (cause, alike) in enumerate(groupby(troubles, lambda one: one.cause), start=1):
        lines += _cause_lines(place, cause, list(alike))
    return [*lines, *notes, f"{seen}; {RUNBOOK} has more on each", *doubts]


def _cause_lines(place: int, cause: str, found: list[Finding]) -> list[str]:
    """Return the findings of one cause; those that differ only in their robot or server are merged."""
    alike: dict[str, list[Finding]] = {}
    for one in found:
        alike.setdefault(without_numbers("\n".join(one.evidence).replace(one.about, "") if one.about else ""), []).append(one)
    lines = []
    for same in list(alike.values())[:MOST_ALIKE]:
        one, others = same[0], [other.about for other in same[1:]]
        also = f", and the same at {_some(others)}" if others else ""
        lines += [f"{place}. {cause}{': ' if one.about else ''}{one.about}{also}", *(f"   {text}" for text in one.evidence)]
        lines.append(f"   fix: {one.mend}")
    if more := [one.about for same in list(alike.values())[MOST_ALIKE:] for one in same]:
        lines.append(f"   and {len(more)} more: {', '.join(more)}")
    return lines


def _some(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
