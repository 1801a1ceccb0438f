"""`rfm check` and `rfm plan`: a descriptor, validated; its schedule, shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

console = Console(soft_wrap=True)
FactoryFile = Annotated[Path, typer.Argument(metavar="FACTORY.yaml", help="Factory descriptor")]


def check(file: FactoryFile) -> None:
    """Validates a factory descriptor.

    Example:  rfm check my_factory.yaml
    """
    from ros2_rfm_serving.factory import load_factory

    factory = load_factory(file)
    robots = len(factory.robots)
    cluster = ", ".join(f"{g.num_servers} x {g.gpu_type}" for g in factory.server_cluster)
    console.print(f"{file}: valid. {robots} robots; servers: {cluster}")
    for entry in factory.robot_fleet:
        components = ", ".join(f"{name} ({c.model})" for name, c in factory.tasks[entry.task].components.items())
        console.print(f"  {entry.num_robots} x {entry.task}: {components}")


def plan(
    file: FactoryFile,
    profiles: Annotated[Path | None, typer.Option(help="Folder of latency profiles; default: the shipped ones")] = None,
) -> None:
    """Shows the schedule that a factory would get.

    Example:  rfm plan config/factory_quickstart.yaml
    """
    from ros2_rfm_serving import scheduler
    from ros2_rfm_serving.factory import load_factory
    from ros2_rfm_serving.profiles import load_profiles
    from ros2_rfm_serving.ros.runtime import share

    schedule = scheduler.plan(load_factory(file), load_profiles(profiles or share() / "config" / "profiles"), epoch=1)
    servers = Table("server", "model", "components", "batch", "sessions", "predicted p99", title="placement")
    for p in schedule.placements:
        sessions = sum(route.server == p.server for route in schedule.routes)
        servers.add_row(
            p.server, p.model, ", ".join(p.components), str(p.batch_size), str(sessions), f"{p.predicted_p99_s * 1e3:.0f} ms"
        )
    routes = Table("robot", "component", "server", "at most", "SLO", "standby", title="routes")
    for r in schedule.routes:
        slo = f"{r.slo_s * 1e3:.0f} ms" if r.slo_s else "-"
        routes.add_row(r.robot, r.component, r.server, f"{r.max_rate_hz:.2f} Hz", slo, r.standby or "-")
    console.print(servers, routes)
    console.print(f"{schedule.predicted_actions_hz:.2f} action predictions per second, policy `{schedule.policy}`")
