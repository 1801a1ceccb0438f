"""`rfm zenoh`: Zenoh's configurations for a whole factory, from its descriptor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ros2_rfm_serving.operate.inputs import FactoryFile, console


def zenoh(
    file: FactoryFile,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where they are written", show_default=False)],
    address: Annotated[
        str, typer.Option(help="Of the factory's router, as robots reach it; default: the scheduler's host of the descriptor")
    ] = "",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of the factory's router")] = 7447,
    tls: Annotated[
        str, typer.Option(metavar="DIR", help="Mutual TLS: where each machine has ca.pem, own.pem and own.key; default: none")
    ] = "",
    shared_memory: Annotated[bool, typer.Option(help="Between processes of one machine")] = True,
    force: Annotated[bool, typer.Option("--force", help="Over files that are there already")] = False,
) -> None:
    """Writes configurations of routers and sessions for `rmw_zenoh_cpp`, the door and robots without ROS, and a README.

    Observations are best effort and dropped under congestion; chunks reliable, never blocking, urgent (Remote-RTC §6.3).

    Example:  rfm zenoh my_factory.yaml zenoh --address plant.example --tls /etc/rfm_serving/zenoh

    Exit code: 0, or 2 when something is wrong with the descriptor, or a file would be overwritten.
    """
    from ros2_rfm_serving.factory import load_factory
    from ros2_rfm_serving.operate.deploy.files import write
    from ros2_rfm_serving.operate.zenoh import Options, files

    options = Options(address=address, port=port, tls=tls, shared_memory=shared_memory)
    written = files(load_factory(file), options)
    write(folder, written, force=force)
    console.print(f"{len(written)} files: {folder / 'README.md'} says what each is for", markup=False)
