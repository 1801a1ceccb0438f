"""Inputs and outputs of the commands around the scheduler: factory, profiles, catalogue; files."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ros2_rfm_serving.dispatch import check_policy
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Catalogue, Factory, load_factory
from ros2_rfm_serving.factory.cluster import AUTOMATIC
from ros2_rfm_serving.factory.outputs import unusable
from ros2_rfm_serving.operate.progress import spinner
from ros2_rfm_serving.profiles import Profile, load_profiles
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.types import SYSTEM1

if TYPE_CHECKING:
    from ros2_rfm_serving.scheduler import Solution


def shipped_if_missing(file: Path | None) -> Path | None:
    """Return the descriptor itself, or a shipped one of that name where it does not exist, with a message on stderr.
    `config/rosa/p1.yaml` and `p1.yaml` mean the same file from any folder."""
    if file is None or file.exists() or file.is_absolute():
        return file
    inside = Path(*file.parts[1:]) if file.parts[:1] == ("config",) else file
    for folder in ("", "rosa"):
        with suppress(ConfigurationError):
            found = shipped("config", folder, *inside.parts)
            if found.is_file():
                Console(stderr=True).print(f"{file} is not here: the shipped {found} is used", highlight=False, markup=False)
                return found
    return file


OwnFactoryFile = Annotated[Path, typer.Argument(metavar="FACTORY.yaml", help="Factory descriptor", show_default=False)]
FactoryFile = Annotated[
    Path,
    typer.Argument(
        metavar="FACTORY.yaml",
        help="Factory descriptor; a shipped one is found from any folder",
        show_default=False,
        callback=shipped_if_missing,
    ),
]
Profiles = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of latency profiles; default: the shipped ones")]
CatalogueFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Model catalogue; default: models.yaml beside the profiles or shipped")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout")]
ChartFile = Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw a chart (needs matplotlib)")]
Robots = Annotated[int | None, typer.Option(min=1, help="Size of the fleet, split among the tasks as declared")]
Servers = Annotated[int | None, typer.Option(min=1, help="Servers of the first group of server_cluster")]
Budget = Annotated[float | None, typer.Option(min=0, metavar="WORK", help="Of the solver: 1 takes one core about a second")]
Policy = Annotated[str, typer.Option(help="best (ours), rosa (the paper's), or baseline1 to baseline4 (ROSA §4.1)")]
RateControl = Annotated[
    bool | None,
    typer.Option("--rate-control/--no-rate-control", help="Cap what a robot sends; the baselines do not", show_default=False),
]
Arrivals = Annotated[
    str | None,
    typer.Option(
        help="Plan with the curves of these arrivals (poisson: as ROSA does) instead of the factory's", show_default=False
    ),
]
PIPE_WIDTH = 160
"""Width of a table that is not shown on a terminal, characters."""

console = Console() if Console().is_terminal else Console(width=PIPE_WIDTH, soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    factory: Factory
    profile: Profile
    catalogue: Catalogue


def load_inputs(
    file: Path,
    profiles: Path | None = None,
    catalogue: Path | None = None,
    *,
    robots: int | None = None,
    servers: int | None = None,
) -> Inputs:
    """Load factory, profiles and catalogue. Raises: `ConfigurationError`, `ProfileError` naming file, line and fix."""
    factory = load_factory(file)
    if robots is not None:
        factory = factory.with_num_robots(robots)
    if servers is not None:
        factory = factory.with_num_servers(servers)
    if len(factory.servers) <= factory.standby.num_servers:
        problem = f"keeps {factory.standby.num_servers} of {len(factory.servers)} servers, none is left for the normal routes"
        raise ConfigurationError(problem, file=factory.file, key="standby.num_servers", fix="ask for more servers")
    for group in factory.server_cluster:
        if group.dispatch != AUTOMATIC:
            check_policy(group.dispatch, factory.file, "server_cluster.dispatch")
    folder = profiles or shipped("config", "profiles")
    models = Catalogue.load(catalogue or _beside(folder))
    for wrong in unusable(factory, models):
        raise wrong
    profile = load_profiles(folder)
    return Inputs(factory=decided(factory, profile, models), profile=profile, catalogue=models)


def decided(factory: Factory, profile: Profile, catalogue: Catalogue) -> Factory:
    """Return the factory with the planner's dispatch policy in place of `auto`; stderr names it. Raises: `RfmError`."""
    if AUTOMATIC not in factory.dispatch.values():
        return factory
    from ros2_rfm_serving.scheduler import without_automatic

    with spinner("choosing a dispatch policy"):
        factory, why = without_automatic(factory, profile, catalogue)
    Console(stderr=True).print(why, highlight=False, markup=False)
    return factory


def with_system1(factory: Factory, model: str = "", gpu_type: str = "") -> Factory:
    """Return the factory with this model for System 1 of every task, and servers of this type; empty: as declared."""
    tasks = {}
    for name, task in factory.tasks.items():
        changed = {SYSTEM1: task.components[SYSTEM1].model_copy(update={"model": model})} if model else {}
        tasks[name] = task.model_copy(update={"components": {**task.components, **changed}})
    groups = tuple(group.model_copy(update={"gpu_type": gpu_type or group.gpu_type}) for group in factory.server_cluster)
    return factory.model_copy(update={"tasks": tasks, "server_cluster": groups})


def _beside(folder: Path) -> Path:
    file = folder / "models.yaml"
    return file if file.exists() else shipped("config", "profiles", "models.yaml")


def print_json(data: Any) -> None:
    """Print JSON to stdout unchanged: rich would colour and wrap it."""
    print(json.dumps(data, indent=1, allow_nan=False))


def write_text(file: Path, text: str) -> None:
    """Write a file. Raises: `ConfigurationError` when it cannot be written."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        fix = "choose a folder that exists"
        raise ConfigurationError(f"cannot be written: {error.strerror}", file=str(file), fix=fix) from error


def solve(
    inputs: Inputs,
    policy: str,
    rate_control: bool | None = None,
    work: float | None = None,
    *,
    explained: bool = True,
    arrivals: str | None = None,
) -> Solution:
    from ros2_rfm_serving.scheduler import plan_factory
    from ros2_rfm_serving.simulation.trial import virtual_time_trial

    with spinner(f"solving with {policy}"):
        return plan_factory(
            inputs.factory,
            inputs.profile,
            inputs.catalogue,
            policy=policy,
            rate_control=rate_control,
            work=work,
            explained=explained,
            arrivals=arrivals,
            trial=virtual_time_trial(inputs.catalogue, inputs.profile),
        )
