"""`rfm order`: the commands of `rfm dashboard`'s buttons, on the command line."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ros2_rfm_serving.operate.running import console, prepare_environment

WITHIN_S = 10.0


def order(
    target: Annotated[str, typer.Argument(metavar="NAME", help="A robot, such as push_1, or a server", show_default=False)],
    what: Annotated[
        Literal["pause", "resume", "abort", "cancel", "release", "drain", "activate"],
        typer.Argument(help="Of robots: pause, resume, abort, cancel, release; of servers: drain, activate", show_default=False),
    ],
    within: Annotated[float, typer.Option(min=0.1, help="Wait for an answer for so long, s")] = WITHIN_S,
    domain: Annotated[int, typer.Option(help="ROS domain; -1: ROS_DOMAIN_ID or 0")] = -1,
    namespace: Annotated[str, typer.Option(help="Namespace of the whole factory")] = "",
) -> None:
    """Tells a robot or a server what to do; `abort` and `cancel` end a task, `release` is told to the scheduler.

    With certificates, by the operator's: RFM_SERVING_ENCLAVE=DIR/enclaves/operator.

    Example:  rfm order push_1 pause

    Exit code: 0, or 2 when it is not there, or refuses.
    """
    prepare_environment(domain)
    from ros2_rfm_serving.operate.ordering import order as tell

    console.print(tell(target, what, namespace, within), markup=False, highlight=False)
