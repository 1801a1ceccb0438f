"""`rfm doctor`: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.doctor.finding import Finding, Verdict

COLOURS = {Verdict.OK: "green", Verdict.MISSING: "red", Verdict.OPTIONAL: "yellow", Verdict.NOTE: "yellow"}


def doctor(
    file: Annotated[Path | None, typer.Argument(metavar="[FACTORY.yaml]", help="With --host: its descriptor")] = None,
    host: Annotated[str, typer.Option(help="Is this machine that host of the descriptor: its address, its GPUs?")] = "",
    json_: Annotated[bool, typer.Option("--json", help="Print a JSON object and nothing else")] = False,
) -> None:
    """Says what is missing on this machine, for which executable or feature, and how to get it.

    Example:  rfm doctor
    Example:  rfm doctor my_factory.yaml --host gpu_a
    Example:  rfm doctor --json | jq '.findings[] | select(.verdict != "ok")'

    Exit code: 0, or 1 when something that a node or the quickstart needs is missing, or the machine is not as declared.
    """
    from ros2_rfm_serving.operate.doctor.checks import findings

    declared = _declared(file, host)  # first: a descriptor that is wrong need not wait for the rest
    found = [*declared, *findings()]
    missing = any(finding.verdict is Verdict.MISSING for finding in found)
    if json_:
        print(json.dumps({"ok": not missing, "findings": [asdict(finding) for finding in found]}, indent=1))
    else:
        Console().print(_table(found))
    if missing:
        raise typer.Exit(1)


def _declared(file: Path | None, host: str) -> list[Finding]:
    """Raises: `ConfigurationError`."""
    from ros2_rfm_serving.factory import load_factory
    from ros2_rfm_serving.operate.doctor.host import host_findings

    if (file is None) != (not host):
        raise ConfigurationError(
            "a descriptor and a host of it go together", key="doctor", fix="rfm doctor FACTORY.yaml --host NAME"
        )
    return list(host_findings(load_factory(file), host)) if file else []


def _table(findings: Sequence[Finding]) -> Table:
    table = Table("part", "")
    table.add_column("found", overflow="fold")
    table.add_column("what to do", overflow="fold")
    for finding in findings:
        cure = finding.fix if finding.verdict is not Verdict.OK else ""
        if finding.fix_in_workspace:
            cure += f"\nin a ROS workspace: {finding.fix_in_workspace}"
        colour = COLOURS[finding.verdict]
        table.add_row(finding.part, f"[{colour}]{finding.verdict.value}[/{colour}]", escape(finding.found), escape(cure))
    return table
