"""`rfm topic`: publishers, messages and rates of topics, without the `ros2` command."""

from __future__ import annotations

import threading
from typing import Annotated

import typer
import yaml

from ros2_rfm_serving.monitoring.plain import counted, plain
from ros2_rfm_serving.operate.running import console, prepare_environment, stop_signals

app = typer.Typer(help="Topics of the ROS graph: who publishes what, what is sent, and how often.", no_args_is_help=True)
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Such as /joint_states", show_default=False)]
Domain = Annotated[int, typer.Option(help="ROS domain; -1: ROS_DOMAIN_ID or 0")]
Wait = Annotated[float, typer.Option(min=0.0, help="Wait for a publisher for so long, s")]


@app.command("list")
def list_(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="A part of the names, or a whole name for its nodes")] = "",
    domain: Domain = -1,
) -> None:
    """Lists topics with their types and the numbers of publishers and subscribers; of one topic, the nodes and their QoS.

    Examples:  rfm topic list   |   rfm topic list camera   |   rfm topic list /joint_states

    Exit code: 0, or 2 when no topic is called so.
    """
    prepare_environment(domain)
    from ros2_rfm_serving.operate.topics import list_topics

    rows, nodes = list_topics(name)
    if not rows:
        console.print(plain(f"no topic has {name!r} in its name" if name else "no topic is there"), soft_wrap=True)
        raise typer.Exit(2)
    for row in rows if not nodes else [row for row in rows if row.name == name]:
        told = f"{counted(row.num_publishers, 'publisher')}, {counted(row.num_subscribers, 'subscriber')}"
        console.print(plain(f"{row.name}  {', '.join(row.types)}  {told}"), soft_wrap=True)
    for one in nodes:
        verb = "publishes" if one.publishes else "subscribes"
        console.print(plain(f"  {one.node} {verb}  {one.type}  {one.qos}"), soft_wrap=True)


@app.command()
def echo(
    topic: Topic,
    count: Annotated[int, typer.Option(min=0, help="End after so many messages; 0: with Ctrl-C")] = 0,
    once: Annotated[bool, typer.Option("--once", help="End after one message")] = False,
    full: Annotated[bool, typer.Option("--full", help="Show long lists and texts whole")] = False,
    wait: Wait = 5.0,
    domain: Domain = -1,
) -> None:
    """Prints messages as YAML; long lists and texts are shortened.

    Examples:  rfm topic echo /joint_states --once   |   rfm topic echo /arm_1/rfm/status --count 3 --full

    Exit code: 0, or 2 when nobody publishes the topic, or its type is not installed here.
    """
    prepare_environment(domain)
    from ros2_rfm_serving.operate.topics import absolute, messages

    stop = threading.Event()
    with stop_signals(stop):
        for message in messages(absolute(topic), 1 if once else count, wait, stop, whole=full):
            text = yaml.safe_dump(message, sort_keys=False, default_flow_style=None, allow_unicode=True, width=1000)
            console.print(plain(f"{text}---"), soft_wrap=True)


@app.command()
def hz(
    topic: Topic,
    seconds: Annotated[float, typer.Option(min=0.0, help="End after so long, s; 0: with Ctrl-C")] = 0.0,
    wait: Wait = 5.0,
    domain: Domain = -1,
) -> None:
    """Prints once a second how often messages come: mean rate, shortest and longest interval, their standard deviation.

    Examples:  rfm topic hz /joint_states   |   rfm topic hz /arm_1/camera/front/image/compressed --seconds 5

    Exit code: 0, 1 when fewer than two messages came, 2 when nobody publishes the topic.
    """
    prepare_environment(domain)
    from ros2_rfm_serving.operate.topics import absolute, rates

    stop, rate = threading.Event(), None
    with stop_signals(stop):
        for num, rate in rates(absolute(topic), seconds, wait, stop):
            if rate is None:
                console.print(plain("no new messages" if not num else "one message"))
                continue
            console.print(plain(f"average rate: {rate.mean_hz:.3f}"))
            spread = f"min: {rate.min_s:.3f}s max: {rate.max_s:.3f}s std dev: {rate.std_s:.5f}s window: {rate.num + 1}"
            console.print(plain(f"\t{spread}"), soft_wrap=True)
    if rate is None:
        raise typer.Exit(1)
