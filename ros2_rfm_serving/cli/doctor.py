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

ORDER = [Verdict.MISSING, Verdict.NOTE, Verdict.OPTIONAL, Verdict.OK]
"""Order of the table: findings that need work come first."""
COLOURS = {Verdict.OK: "green", Verdict.MISSING: "red", Verdict.OPTIONAL: "yellow", Verdict.NOTE: "yellow"}


def doctor(
    file: Annotated[Path | None, typer.Argument(metavar="[FACTORY.yaml]", help="With --host: its descriptor")] = None,
    host: Annotated[str, typer.Option(help="Is this machine that host of the descriptor: its address, its GPUs?")] = "",
    json_: Annotated[bool, typer.Option("--json", help="Print a JSON object and nothing else")] = False,
) -> None:
    """Says whether this machine is ready, what is missing, for which executable or feature, and how to get it.

    Example:  rfm doctor
    Example:  rfm doctor my_factory.yaml --host gpu_a
    Example:  rfm doctor --json | jq '.findings[] | select(.verdict != "ok")'

    Exit code: 0, or 1 when something that a node or the quickstart needs is missing, or the machine is not as declared.
    """
    from ros2_rfm_serving.operate.doctor.checks import findings

    declared = _declared(file, host)  # first: a wrong descriptor need not wait for the rest
    with Console(stderr=True).status("Every import of every executable is tried; this takes some seconds."):
        found = [*declared, *findings()]
    missing = any(finding.verdict is Verdict.MISSING for finding in found)
    if json_:
        report = {"ok": not missing, "verdict": verdict_of(found), "findings": [asdict(finding) for finding in found]}
        print(json.dumps(report, indent=1))
    else:
        console = Console()
        console.print(verdict_of(found), style="bold red" if missing else "bold green", markup=False, highlight=False)
        console.print(_table(sorted(found, key=lambda finding: ORDER.index(finding.verdict))))
    if missing:
        raise typer.Exit(1)


def verdict_of(found: Sequence[Finding]) -> str:
    """Return one or two sentences: whether this machine runs a factory, and how much of what is optional it lacks."""
    parts = {verdict: [finding.part for finding in found if finding.verdict is verdict] for verdict in Verdict}
    if missing := parts[Verdict.MISSING]:
        verdict = f"This machine is not ready: {_listed(missing)}. The first rows say what to do."
    else:
        verdict = "This machine is ready to run a factory."
    if notes := parts[Verdict.NOTE]:
        verdict += f" To look at: {_listed(notes)}."
    if optional := parts[Verdict.OPTIONAL]:
        verdict += f" {len(optional)} optional {'part is' if len(optional) == 1 else 'parts are'} absent: {_listed(optional)}."
    return verdict


def _listed(parts: Sequence[str], most: int = 8) -> str:
    return ", ".join(parts[:most]) + (f" and {len(parts) - most} more" if len(parts) > most else "")


def _declared(file: Path | None, host: str) -> list[Finding]:
    """Return the findings of a host. Raises: `ConfigurationError`."""
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
        if finding.fix_in_workspace and finding.fix_in_workspace != finding.fix:
            cure += f"\nin a ROS workspace: {finding.fix_in_workspace}"
        colour = COLOURS[finding.verdict]
        table.add_row(finding.part, f"[{colour}]{finding.verdict.value}[/{colour}]", escape(finding.found), escape(cure))
    return table
