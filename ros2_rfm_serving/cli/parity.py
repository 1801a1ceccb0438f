"""`rfm parity`: does an engine compute what its reference computes, block by block?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ros2_rfm_serving.monitoring.plain import PlainTable
from ros2_rfm_serving.operate.engines import load_engine
from ros2_rfm_serving.operate.inputs import CatalogueFile, JsonFlag, Profiles, console
from ros2_rfm_serving.shipped import shipped

if TYPE_CHECKING:
    from ros2_rfm_serving.engines.base import Parity

Models = Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", help="Of the catalogue; default: all its bundles")]
Device = Annotated[str, typer.Option(help="Check it there: cpu, cuda, cuda:1; default: as the catalogue says")]
Dtype = Annotated[
    str, typer.Option(help="Check it in this precision: float32, bfloat16, float16, int8, int4; default: as the catalogue says")
]


def parity(
    models: Models = None,
    profiles: Profiles = None,
    catalogue: CatalogueFile = None,
    device: Device = "",
    dtype: Dtype = "",
    json_: JsonFlag = False,
) -> None:
    """Compares engines with their references, block by block; exit code 1 if one is further off than it may be.

    A reference is the same network in float64, in a loop that computes everything anew at every solver step.

    Example:  rfm parity
    Example:  rfm parity rfm/metaworld-flow --dtype bfloat16
    """
    catalogue = catalogue or (profiles / "models.yaml" if profiles else None)
    options = {key: value for key, value in (("device", device), ("dtype", dtype)) if value}
    checks = {
        model: load_engine(model, catalogue=catalogue, options=options).check_parity() for model in models or _bundles(catalogue)
    }
    if json_:
        print(
            json.dumps({model: [{**asdict(p), "passes": p.passes} for p in blocks] for model, blocks in checks.items()}, indent=1)
        )
    else:
        console.print(_table(checks))
    if not all(p.passes for blocks in checks.values() for p in blocks):
        raise typer.Exit(1)


def _bundles(file: Path | None) -> list[str]:
    from ros2_rfm_serving.factory import Catalogue

    models = Catalogue.load(file or shipped("config", "profiles", "models.yaml")).models
    return [model for model, entry in models.items() if entry.engine == "bundle"]


def _table(checks: dict[str, list[Parity]]) -> PlainTable:
    table = PlainTable("model", "block", "error", "may be", "")
    for model, blocks in checks.items():
        if not blocks:
            table.add_row(model, "nothing to compare with", "-", "-", "unchecked", style="yellow")
        for p in blocks:
            verdict = ("ok", "") if p.passes else ("FAILS", "red")
            table.add_row(model, p.block, f"{p.error:.2g}", f"{p.tolerance:g}", verdict[0], style=verdict[1])
    return table
