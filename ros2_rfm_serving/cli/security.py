"""`rfm security`: certificates, permissions and tokens of a factory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ros2_rfm_serving.monitoring.plain import counted
from ros2_rfm_serving.operate.extras import needing
from ros2_rfm_serving.operate.inputs import FactoryFile, console

if TYPE_CHECKING:
    from datetime import datetime

    from ros2_rfm_serving.security.folder import Folder

app = typer.Typer(
    help="Who may do what in a factory: certificates, permissions and tokens (docs/security.md).", no_args_is_help=True
)
Where = Annotated[Path, typer.Argument(metavar="DIR", help="That `rfm security init` wrote", show_default=False)]
Days = Annotated[float, typer.Option(min=0.0, max=3650.0, help="That certificates are good for")]


@app.command()
def init(
    file: FactoryFile,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where all of it is written", show_default=False)],
    days: Days = 365.0,
    address: Annotated[
        list[str] | None, typer.Option(help="Further name or address that doors are reached under; again for more")
    ] = None,
    client: Annotated[list[str] | None, typer.Option(help="Of the websocket door without being a robot; again for more")] = None,
    router: Annotated[str, typer.Option(help="Where members find the Zenoh router")] = "localhost",
    at: Annotated[str, typer.Option(help="Where DIR, or a member's part of it, will lie on the machines; default: as here")] = "",
    domain: Annotated[int, typer.Option(help="ROS domain; -1: the descriptor's, ROS_DOMAIN_ID or 0")] = -1,
    namespace: Annotated[str, typer.Option(help="Namespace of the whole factory; default: the descriptor's")] = "",
) -> None:
    """Makes a certificate authority, a certificate and a key for every process of the factory, an SROS2 keystore, the rules of a
    Zenoh router and the tokens of the websocket door.

    Examples:  rfm security init my_factory.yaml security   |   rfm security init my_factory.yaml security --address gpu-1.plant

    Exit code: 0, or 2 when something is wrong with the descriptor, or DIR has an authority already.
    """
    with needing("security", "rfm security"):
        from ros2_rfm_serving.security.authority import utc_now
        from ros2_rfm_serving.security.folder import Folder
        from ros2_rfm_serving.security.issuing import start
        from ros2_rfm_serving.security.record import Record
    from ros2_rfm_serving.factory import load_factory
    from ros2_rfm_serving.factory.environment import discovery_environment
    from ros2_rfm_serving.operate.running import prepare_environment, ros_domain
    from ros2_rfm_serving.ros.node.runtime import share
    from ros2_rfm_serving.security.members import members_of

    factory = load_factory(file)
    prepare_environment(domain, discovery_environment(factory))
    members = members_of(factory, share() / "config", (*(address or ()), router))
    empty = Record(
        factory=factory.name,
        domain=int(ros_domain()),
        namespace=namespace or factory.discovery.namespace,
        router=router,
        place=at.rstrip("/"),
        members={},
    )
    clients = [*(robot.name for robot in factory.robots), *(client or ())]
    record = start(Folder(folder), empty, members, clients, utc_now(), days)
    made = f"{counted(len(record.members), 'member')}, {counted(len(record.clients), 'token')}"
    console.print(
        f"{folder}: {made}; copy enclaves/<member> to its machine, and keep private/ here",
        markup=False,
        soft_wrap=True,
    )


@app.command()
def add(
    file: FactoryFile,
    folder: Where,
    robot: Annotated[str, typer.Argument(metavar="ROBOT", help="Name of the new robot", show_default=False)],
    task: Annotated[str, typer.Option(help="A task of the descriptor")],
    days: Days = 365.0,
) -> None:
    """Issues to a robot that was not in the descriptor at `init`, and to its world: certificate, key, permissions and token. The
    router's rules, tokens/door and all members' DDS permissions name it, too; `rfm robot --security` starts it.

    Example:  rfm security add my_factory.yaml security push_2 --task push

    Exit code: 0, or 2 when its name belongs to a member, or did, or cannot name a robot.
    """
    now, opened = _opened(folder)
    from ros2_rfm_serving.factory import load_factory
    from ros2_rfm_serving.factory.dynamic_robot import dynamic_robot_entry
    from ros2_rfm_serving.ros.node.runtime import share
    from ros2_rfm_serving.security.issuing import add as issue_to
    from ros2_rfm_serving.security.members import members_of_robot

    factory = load_factory(file)
    members = members_of_robot(factory, dynamic_robot_entry(factory, robot, task), share() / "config")
    issue_to(opened, members, now, days)
    told = f"{folder}: {', '.join(members)} added; copy their enclaves to the robot's machine, tokens/door to websocket doors"
    told += "; start the Zenoh router again with zenoh/router.json5; over DDS Security copy everybody's permissions.p7s, too"
    console.print(told, markup=False, soft_wrap=True)


@app.command()
def rotate(
    folder: Where,
    member: Annotated[list[str] | None, typer.Option(help="Whose; again for more; default: everybody's")] = None,
    days: Days = 365.0,
) -> None:
    """Issues new keys, certificates and tokens. Doors take theirs up at once, without a restart; DDS and Zenoh with one.

    Example:  rfm security rotate security --member server_1

    Exit code: 0, or 2 when the folder cannot be used.
    """
    now, opened = _opened(folder)
    from ros2_rfm_serving.security.issuing import rotate as issue_anew

    record = issue_anew(opened, member or [], now, days)
    console.print(f"{len(member or record.members)} issued anew: copy enclaves/<member> to their machines", markup=False)


@app.command()
def revoke(folder: Where, member: Annotated[str, typer.Argument(help="Or a client of the websocket door")]) -> None:
    """Takes a member's certificate and token away. Copy tokens/door, zenoh/router.json5 and every enclave's crl.pem to where they
    are used; `rfm security rotate --member` issues to it again, under another common name.

    Example:  rfm security revoke security push_1

    Exit code: 0, or 2 when there is no such member.
    """
    now, opened = _opened(folder)
    from ros2_rfm_serving.security.issuing import revoke as take_away

    take_away(opened, member, now)
    console.print(f"{member} is revoked; docs/security.md says where that has to be told", markup=False)


@app.command()
def check(folder: Where) -> None:
    """Says what is wrong: certificates that end, keys that others may read, permissions that are not the wire table's.

    Exit code: 0, also where something ends within 30 days; 1 when something is wrong; 2 when the folder cannot be used.
    """
    now, opened = _opened(folder)
    from ros2_rfm_serving.security.checking import check as problems_of
    from ros2_rfm_serving.security.record import Record

    problems = problems_of(opened, now)
    for problem in problems:
        style = "red" if problem.is_serious else "yellow"
        console.print(f"{problem.where}: {problem.what}; {problem.fix}", style=style, markup=False, highlight=False, soft_wrap=True)
    if any(problem.is_serious for problem in problems):
        raise typer.Exit(1)
    console.print(f"{len(Record.load(opened).members)} members, and nothing is wrong", markup=False)


def _opened(folder: Path) -> tuple[datetime, Folder]:
    """Return the present time, and the folder."""
    with needing("security", "rfm security"):
        from ros2_rfm_serving.security.authority import utc_now
        from ros2_rfm_serving.security.folder import Folder
    return utc_now(), Folder(folder)
