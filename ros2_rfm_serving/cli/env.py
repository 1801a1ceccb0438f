"""`rfm env`: the environment in which any other program of a machine discovers a factory."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ros2_rfm_serving.operate.inputs import FactoryFile


def env(
    file: FactoryFile,
    host: Annotated[str, typer.Option(help="The host of the descriptor that this machine is; `-`: none of them")] = "-",
    folder: Annotated[Path, typer.Option(help="Where a Fast DDS profile is written, if the factory has a partition")] = Path(),
) -> None:
    """Prints the environment of a factory's own processes, for a shell, so that `ros2 topic`, `rfm status` and rviz discover it.

    Example:  eval "$(rfm env my_factory.yaml)"; rfm status
    """
    from ros2_rfm_serving.factory import load_factory
    from ros2_rfm_serving.factory.environment import discovery_environment
    from ros2_rfm_serving.ros.node.middleware import PROFILES_FILE, use_partition, use_profile

    factory = load_factory(file)
    said = dict(discovery_environment(factory, host if factory.hosts else ""))
    if partition := factory.discovery.partition:
        profile: dict[str, str] = {}
        use_profile(environment=profile)
        use_partition(partition, folder, profile)
        said |= {PROFILES_FILE: profile[PROFILES_FILE]}
    for name, value in said.items():
        print(f"export {name}={shlex.quote(value)}" if value else f"unset {name}")
    if factory.discovery.namespace:
        print(f"# --namespace {factory.discovery.namespace}")
