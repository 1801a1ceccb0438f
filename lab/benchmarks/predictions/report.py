"""`rfm bench predictions`: predicted p99 and rates against virtual time, spread of runs, and effect of a known network."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.inputs import console, write_text
from ros2_rfm_serving.operate.progress import spinner
from ros2_rfm_serving.shipped import shipped

Batching = Literal["fixed", "continuous"]


def predictions(
    factories: Annotated[
        int,
        typer.Option(
            min=1, help="Random factories of each kind: without networks, with them, with late answers, horizons by servers"
        ),
    ] = 35,
    runs: Annotated[int, typer.Option(min=2, help="Runs of each plan, which differ in when robots start")] = 6,
    seconds: Annotated[float, typer.Option(min=5, help="Virtual time of each, after the warm-up")] = 30.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the first factory")] = 0,
    batching: Annotated[Batching, typer.Option(help="Of action models: fixed batches, or rows that join a running one")] = "fixed",
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw predicted over simulated (needs matplotlib)")] = None,
) -> None:
    """What plans predict and promise, against virtual time; plans that know a network, against plans that do not.

    Example:  rfm bench predictions --factories 5 --runs 3 --seconds 10
    """
    from lab.benchmarks.predictions.plot import scatter
    from lab.benchmarks.predictions.run import KINDS, Runs, cases
    from lab.benchmarks.predictions.tables import servers_of, show
    from ros2_rfm_serving.factory import Catalogue
    from ros2_rfm_serving.profiles import load_profiles
    from ros2_rfm_serving.reports import charts

    if plot:
        charts.require_matplotlib()
        if not plot.parent.is_dir():
            raise ConfigurationError(f"the folder of {plot} does not exist", key="--plot", fix="create it")
    folder = shipped("config", "profiles")
    profile, catalogue = load_profiles(folder), Catalogue.load(folder / "models.yaml")
    how = Runs(count=runs, seconds=seconds, profile=profile, catalogue=catalogue, batching=batching)
    found = []
    for name in KINDS:
        with spinner(f"{factories} factories, {name}"):
            of_kind = list(cases(range(seed, seed + factories), how, kind=name))
        found += [case for case in of_kind if not isinstance(case, int)]
        unserved = [str(case) for case in of_kind if isinstance(case, int)]
        if unserved:
            console.print(f"{name}: no plan is known of {len(unserved)} of {factories}: {', '.join(unserved)}")
    show(found)
    if json_file:
        write_text(json_file, json.dumps([asdict(case) for case in found], indent=1) + "\n")
    if plot:
        panels = {name: servers for name in KINDS if (servers := servers_of(found, name))}
        charts.save(scatter(panels), plot)
