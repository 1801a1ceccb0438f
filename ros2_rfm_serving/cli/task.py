"""`rfm task`: a task for one robot, without `ros2`."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.plain import plain
from ros2_rfm_serving.operate.running import console, prepare_environment, stop_signals
from ros2_rfm_serving.types import MAX_INSTRUCTION_CHARACTERS


def task(
    robot: Annotated[str, typer.Argument(metavar="ROBOT", help="A robot that is on the graph, such as push_1")] = "",
    instruction: Annotated[str, typer.Option(help="What it is told to do; default: the prompt of its task")] = "",
    budget: Annotated[float, typer.Option(min=0, max=1e6, help="Time of each attempt, s; 0: the robot's default")] = 0.0,
    reset: Annotated[
        bool | None,
        typer.Option("--reset/--no-reset", help="Bring robot and workpiece to the start first; default: where it offers a reset"),
    ] = None,
    watch: Annotated[bool, typer.Option(help="Follow it to its end; off: return as soon as the robot works on it")] = True,
    list_: Annotated[bool, typer.Option("--list", help="List the robots and what they offer")] = False,
    domain: Annotated[int, typer.Option(help="ROS domain; -1: ROS_DOMAIN_ID or 0")] = -1,
    namespace: Annotated[str, typer.Option(help="Namespace of the whole factory")] = "",
    wait: Annotated[float, typer.Option(min=0, help="Look for a factory for so long, s")] = 5.0,
) -> None:
    """Gives a robot a task, follows its progress and explains its result; Ctrl-C cancels it.

    A task of a person takes the robot from a program such as the foreman of `rfm up`, which goes on afterwards. With certificates:
    RFM_SERVING_ENCLAVE=DIR/enclaves/operator.

    Examples:  rfm task --list   |   rfm task push_1   |   rfm task pick_1 --instruction "put the cup on the tray" --budget 60

    Exit code: 0 it succeeded (with --no-watch: the robot works on it), 1 it did not, 2 no factory or no such robot is there.
    """
    if not (robot or list_):
        raise ConfigurationError("no robot is named", key="ROBOT", fix="write rfm task ROBOT; rfm task --list shows the robots")
    if len(instruction) > MAX_INSTRUCTION_CHARACTERS:
        problem = f"has {len(instruction)} characters; at most {MAX_INSTRUCTION_CHARACTERS}"
        raise ConfigurationError(problem, key="--instruction", fix="shorten it")
    prepare_environment(domain)
    from ros2_rfm_serving.operate.tasking import Wish, give_task, list_robots

    stop = threading.Event()
    with stop_signals(stop):
        if list_:
            list_robots(namespace, wait, stop)
            return
        answer = give_task(Wish(robot, instruction, budget, reset, watch), namespace, wait, stop)
    console.print(plain(f"{robot}: {answer.message}"), style="green" if answer.done else "red", soft_wrap=True)
    if not answer.done:
        raise typer.Exit(1)
