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

if TYPE_CHECKING:
    from ros2_rfm_serving.monitoring.findings.finding import Finding
    from ros2_rfm_serving.monitoring.findings.look import Look

RUNBOOK = "docs/runbook.md"
MOST_ALIKE = 3
"""Findings of one cause that are printed in full."""


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

    Exit code: 0 nothing is wrong, 1 something is, 2 no factory is there, or no such robot or server.
    """
    prepare_environment(domain)
    from ros2_rfm_serving.monitoring.findings.causes import concerning, findings
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
    if found:
        raise typer.Exit(1)


def _check(look: Look, name: str) -> None:
    """Raises: `ConfigurationError` when nobody is called so."""
    there = sorted({*look.robots, *look.servers})
    if name not in there:
        raise ConfigurationError(
            f"no robot or server is called {name!r}", fix=f"one of {', '.join(there) or 'none: nobody is there'}"
        )


def _as_json(look: Look, found: list[Finding]) -> dict[str, object]:
    return {
        "ok": not found,
        "looked_s": round(look.seconds, 1),
        "robots": len(look.robots),
        "servers": len(look.servers),
        "findings": [asdict(one) for one in found],
        "doubts": look.doubts,
    }


def _lines(look: Look, found: list[Finding]) -> list[str]:
    seen = f"{counted(len(look.robots), 'robot')} and {counted(len(look.servers), 'server')}, seen for {look.seconds:.1f} s"
    doubts = [f"{doubt}; so are diagnoses (`says`)" if doubt == AS_SAID else doubt for doubt in look.doubts]
    if not found:
        return [f"nothing is wrong: {seen}", *doubts]
    lines: list[str] = []
    for place, (cause, alike) in enumerate(groupby(found, lambda one: one.cause), start=1):
        told = list(alike)
        for one in told[:MOST_ALIKE]:
            lines += [f"{place}. {cause}{': ' if one.about else ''}{one.about}", *(f"   {words}" for words in one.evidence)]
            lines.append(f"   fix: {one.mend}")
        if more := [one.about for one in told[MOST_ALIKE:]]:
            lines.append(f"   and {len(more)} more: {', '.join(more)}")
    return [*lines, f"{seen}; {RUNBOOK} has more on each", *doubts]
