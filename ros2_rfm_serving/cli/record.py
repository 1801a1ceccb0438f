"""`rfm record`: a running factory to a bag."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.extras import needing
from ros2_rfm_serving.operate.progress import spinner
from ros2_rfm_serving.operate.running import console, prepare_environment, ros_domain, spinning, stop_signals

if TYPE_CHECKING:
    from ros2_rfm_serving.audit.recording.told import Told

SAY_PERIOD_S, LOOK_PERIOD_S = 10.0, 0.2
TRIGGER_S = 5.0


def record(
    folder: Annotated[Path | None, typer.Argument(metavar="[FOLDER]", help="New; default: recordings/<time>")] = None,
    seconds: Annotated[float, typer.Option(min=0, help="End by itself after this time; 0: Ctrl-C")] = 0.0,
    cameras: Annotated[bool, typer.Option(help="Camera topics too; what the models saw is recorded anyway")] = False,
    topics: Annotated[list[str] | None, typer.Option(help="Further topics, such as '/cell_3/*'; may be given again")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Topics that are left out; may be given again")] = None,
    split_mb: Annotated[float, typer.Option(min=0, help="Another file from this size on; 0: never")] = 1024.0,
    split_minutes: Annotated[float, typer.Option(min=0, help="Another file after this time; 0: never")] = 15.0,
    keep_gb: Annotated[float, typer.Option(min=0, help="Remove the oldest files beyond this; 0: never")] = 0.0,
    keep_days: Annotated[float, typer.Option(min=0, help="Remove older files; 0: never")] = 0.0,
    queue_mb: Annotated[float, typer.Option(min=1, help="What waits for the disk; what comes beyond is lost, and counted")] = 256.0,
    flight: Annotated[float, typer.Option(min=0, help="Keep so many seconds in memory; write when something happens")] = 0.0,
    after: Annotated[float, typer.Option(min=0, help="With --flight: and so many seconds afterwards")] = 10.0,
    flight_mb: Annotated[float, typer.Option(min=1, help="With --flight: in memory at most")] = 512.0,
    incidents_per_hour: Annotated[int, typer.Option(min=1, help="With --flight: written at most")] = 12,
    trigger: Annotated[bool, typer.Option(help="Tell a running flight recorder to write what it has, and end")] = False,
    recover: Annotated[bool, typer.Option(help="Mend FOLDER, which was cut off, and end")] = False,
    domain: Annotated[int, typer.Option(help="ROS domain; -1: ROS_DOMAIN_ID or 0")] = -1,
    namespace: Annotated[str, typer.Option(help="Namespace of the whole factory")] = "",
) -> None:
    """Records a factory that is running, or that starts later, to a rosbag2 folder (MCAP). No process waits for it; messages that a
    slow or full disk does not take are counted, and shown in /diagnostics.

    Examples:  rfm record   |   rfm record night --keep-gb 50   |   rfm record --flight 30   |   rfm record --trigger

               rfm record --recover recordings/20260711-140312

    Exit code: 0, 1 when the audit log that was recorded is incomplete, or 2 when the folder cannot be used.
    """
    with needing("audit", "rfm record"):
        from ros2_rfm_serving.audit.recording import recover as _  # noqa: F401
    if recover:
        _recover(folder)
        return
    prepare_environment(domain)
    if trigger:
        _trigger(namespace)
        return
    parameters: dict[str, Any] = {
        "folder": str(folder or ""),
        "cameras": cameras,
        "topics": topics or [""],
        "exclude": exclude or [""],
        "split_mb": split_mb,
        "split_minutes": split_minutes,
        "keep_gb": keep_gb,
        "keep_days": keep_days,
        "queue_mb": queue_mb,
        "flight_s": flight,
        "after_s": after,
        "flight_mb": flight_mb,
        "incidents_per_hour": incidents_per_hour,
        "fleet_namespace": namespace,
    }
    _record(parameters, seconds)


def _record(parameters: dict[str, Any], seconds: float) -> None:
    from rclpy.parameter import Parameter

    from ros2_rfm_serving.ros.monitor.recorder import RecorderNode

    stop = threading.Event()
    overrides = [Parameter(name, value=value) for name, value in parameters.items()]
    with stop_signals(stop), spinning(lambda: RecorderNode(parameter_overrides=overrides)) as node:
        console.print(f"recording ROS domain {ros_domain()} to {node.told.folder}; Ctrl-C ends it", markup=False, highlight=False)
        try:
            _wait(stop, seconds, lambda: node.told)
        finally:
            node.stop()
            told = node.told
    console.print(told.words(), markup=False, highlight=False)
    if told.broken:
        raise typer.Exit(1)


def _wait(stop: threading.Event, seconds: float, told: Any) -> None:
    end_s = time.monotonic() + seconds if seconds else float("inf")
    said_s, problem = time.monotonic(), ""
    while not stop.wait(LOOK_PERIOD_S) and time.monotonic() < end_s:
        now: Told = told()
        if now.problem != problem or time.monotonic() - said_s >= SAY_PERIOD_S:
            said_s, problem = time.monotonic(), now.problem
            console.print(f"{problem}: {now.words()}" if problem else now.words(), markup=False, highlight=False)


def _recover(folder: Path | None) -> None:
    from ros2_rfm_serving.audit.recording.recover import recover

    if folder is None:
        raise ConfigurationError("no folder", key="--recover", fix="name the folder of a recording")
    with spinner("mending the recording"):
        mended = recover(folder)
    for one in mended:
        lost = f", {one.lost_bytes} bytes behind the last whole chunk are gone" if one.lost_bytes else ""
        how = f"mended{lost}" if one.mended else "whole"
        console.print(f"{one.name}: {how}; {one.messages} messages", markup=False, highlight=False)
        for problem in one.problems:
            console.print(f"  {problem}", markup=False, highlight=False)


def _trigger(namespace: str) -> None:
    from rclpy.node import Node
    from std_srvs.srv import Trigger

    service = f"/{namespace.strip('/')}/rfm/recorder/save".replace("//", "/")
    with spinning(lambda: Node("rfm_record_trigger", enable_rosout=False, start_parameter_services=False)) as node:
        client = node.create_client(Trigger, service)
        answered = threading.Event()
        there = client.wait_for_service(timeout_sec=TRIGGER_S)
        future = client.call_async(Trigger.Request()) if there else None
        if future is not None:
            future.add_done_callback(lambda _: answered.set())
        if future is None or not answered.wait(TRIGGER_S):
            fix = "start one with `rfm record --flight 30`, or name its --domain and --namespace"
            raise ConfigurationError(f"no flight recorder answers in ROS domain {ros_domain()}", key="--trigger", fix=fix)
        console.print(future.result().message, markup=False, highlight=False)
