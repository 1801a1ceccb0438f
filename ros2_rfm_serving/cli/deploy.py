"""`rfm deploy`: manifests for whatever runs a factory on many machines, from its descriptor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.inputs import FactoryFile, Inputs, Profiles, console, load_inputs
from ros2_rfm_serving.ros.node.process import LogLevel

if TYPE_CHECKING:
    from ros2_rfm_serving.operate.deploy.options import Kind, Options

Door = Annotated[
    int, typer.Option(min=0, max=65535, metavar="PORT", help="Open the servers' websocket doors, with a token; 0: closed")
]
Security = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Certificates, as of `rfm security init`: each process finds its own; none is written"),
]


def deploy(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where they are written", show_default=False)],
    file: FactoryFile,
    kubernetes: Annotated[bool, typer.Option("--kubernetes", help="Deployments, with a Dockerfile")] = False,
    compose: Annotated[bool, typer.Option("--compose", help="A compose.yaml for each host, with a Dockerfile")] = False,
    systemd: Annotated[bool, typer.Option("--systemd", help="Units for each host, without containers")] = False,
    force: Annotated[bool, typer.Option("--force", help="Over files that are there already")] = False,
    namespace: Annotated[str, typer.Option(help="Namespace of the whole factory; default: the descriptor's")] = "",
    domain: Annotated[int, typer.Option(help="ROS domain; -1: the descriptor's, ROS_DOMAIN_ID or 0")] = -1,
    profiles: Profiles = None,
    log_level: Annotated[LogLevel, typer.Option(help="Of every node")] = LogLevel.INFO,
    foreman: Annotated[bool, typer.Option(help="Give every robot its task over and over; off: send goals yourself")] = True,
    host_network: Annotated[bool, typer.Option("--host-network", help="Containers have their machine's addresses")] = False,
    door: Door = 0,
    metrics: Annotated[int, typer.Option(min=1, max=65000, metavar="PORT", help="Of `rfm metrics`, which probes ask")] = 9464,
    image: Annotated[str, typer.Option(metavar="NAME", help="Of the images: NAME/robot, NAME/server")] = "rfm_serving",
    tag: Annotated[str, typer.Option(help="Of the images")] = "latest",
    security: Security = None,
    cache_claim: Annotated[
        str, typer.Option(metavar="NAME", help="Kubernetes: PersistentVolumeClaim for what servers have compiled")
    ] = "",
    etc: Annotated[str, typer.Option(metavar="DIR", help="systemd: where the files will be on the machine")] = "/etc/rfm_serving",
    prefix: Annotated[str, typer.Option(metavar="DIR", help="systemd: rfm_serving's environment there; default: this one")] = "",
) -> None:
    """Writes how a factory is run elsewhere: the processes of `rfm up`, with probes, draining, GPUs and restarts, and a README.

    The same descriptor gives the same bytes. No secret is written: the README says which ones to put in place.

    Examples:  rfm deploy --kubernetes k8s my_factory.yaml   |   rfm deploy --systemd units my_factory.yaml --prefix /opt/rfm

    Exit code: 0, or 2 when something is wrong with the descriptor, or a file would be overwritten.
    """
    from ros2_rfm_serving.factory.environment import discovery_environment
    from ros2_rfm_serving.operate.deploy.options import Options
    from ros2_rfm_serving.operate.running import prepare_environment, ros_domain

    kind = _kind(kubernetes=kubernetes, compose=compose, systemd=systemd)
    inputs = load_inputs(file, profiles, profiles / "models.yaml" if profiles else None)
    prepare_environment(domain, discovery_environment(inputs.factory))
    options = Options(
        kind=kind,
        namespace=namespace or inputs.factory.discovery.namespace,
        domain=ros_domain(),
        log_level=log_level.value,
        foreman=foreman,
        profiles=profiles,
        host_network=host_network,
        cache_claim=cache_claim,
        door=door,
        metrics=metrics,
        image=image,
        tag=tag,
        security=security,
        etc=etc.rstrip("/"),
        prefix=prefix.rstrip("/"),
    )
    _write(folder, inputs, options, force)


def _kind(**asked: bool) -> Kind:
    """Return the kind of manifests. Raises: `ConfigurationError` unless exactly one is given."""
    from ros2_rfm_serving.operate.deploy.options import Kind

    kinds = [kind for kind, wanted in asked.items() if wanted]
    if len(kinds) != 1:
        raise ConfigurationError(
            f"{len(kinds)} kinds of manifests are asked for", key="deploy", fix="give one of --kubernetes, --compose, --systemd"
        )
    return Kind[kinds[0].upper()]


def _write(folder: Path, inputs: Inputs, options: Options, force: bool) -> None:
    """Check the factory and write the files. Raises: `RfmError` before any file is written."""
    from ros2_rfm_serving.operate.deploy.files import open_to_readers, write
    from ros2_rfm_serving.operate.deploy.planning import elsewhere, plan
    from ros2_rfm_serving.operate.deploy.writing import files
    from ros2_rfm_serving.operate.drafts import check_nodes
    from ros2_rfm_serving.operate.rates import check_rates
    from ros2_rfm_serving.scheduler import start_fleet

    start_fleet(inputs.factory, inputs.factory.robots, inputs.profile, inputs.catalogue, epoch=1)  # as `rfm up` does first
    check_rates(inputs.factory, inputs.catalogue)
    planned = plan(inputs.factory, inputs.catalogue, options)
    written = files(planned)
    warnings = check_nodes([process.node for process in planned.processes], inputs.factory.file)
    warnings += elsewhere(planned, inputs.catalogue)
    warnings += write(folder, written, force=force)
    open_to_readers(folder, written)
    for warning in warnings:
        console.print(f"warning: {warning}", style="yellow", highlight=False, markup=False)
    console.print(
        f"{len(written)} files, {len(planned.processes)} processes: {folder / 'README.md'} says how they are put in force",
        markup=False,
    )
