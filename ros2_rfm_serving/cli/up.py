"""`rfm up`: starts every process of a factory on this machine and shows how it does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ros2_rfm_serving.operate.inputs import shipped_if_missing
from ros2_rfm_serving.operate.run import Outcome, run_factory
from ros2_rfm_serving.operate.running import (
    Options,
    console,
    new_logs,
    new_recording,
    quickstart,
)
from ros2_rfm_serving.ros.node.process import LogLevel, ignore_signals

FactoryArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FACTORY.yaml]",
        help="Default: the quickstart; a shipped one is found from any folder",
        show_default=False,
        callback=shipped_if_missing,
    ),
]
Host = Annotated[
    str, typer.Option(help="Start what runs on this host of the descriptor (docs/hosts.md); default: all, on this machine")
]
Cluster = Annotated[str, typer.Option(metavar="[ray]", help="Keep scheduler and servers on a Ray cluster (docs/ray.md)")]
RayAddress = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Of the cluster, as `ray start` names it; default: RAY_ADDRESS, or a local one")
]
RayPatience = Annotated[
    float, typer.Option(metavar="SECONDS", min=0, help="How long a cluster's lost head is waited for; then all ends")
]
Seconds = Annotated[float, typer.Option(min=0, help="End by itself after this time at work; 0: run until Ctrl-C")]
Episodes = Annotated[int, typer.Option(min=0, help="End when every robot did this many tasks; 0: no such end")]
Domain = Annotated[int, typer.Option(help="ROS domain; -1: ROS_DOMAIN_ID or 0")]
Namespace = Annotated[str, typer.Option(help="Namespace of the whole factory; default: the descriptor's")]
Profiles = Annotated[Path | None, typer.Option(help="Folder of profiles and models.yaml; default: shipped")]
Logs = Annotated[Path | None, typer.Option(help="Folder of the logs; default: logs/<time>")]
Level = Annotated[LogLevel, typer.Option(help="Of every node")]
Foreman = Annotated[bool, typer.Option(help="Give every robot its task over and over; off: send goals yourself")]
EndOnScore = Annotated[
    bool, typer.Option(help="End a task when the simulator scores it, whatever the monitor says (to evaluate a policy)")
]
Metrics = Annotated[int, typer.Option(min=-1, max=65535, help="Port for Prometheus, as of `rfm metrics`; -1: none, 0: any")]
MetricsAddress = Annotated[str, typer.Option(help="To listen on")]
Dashboard = Annotated[
    str, typer.Option(metavar="[ADDRESS:]PORT", help="Of the web page, as of `rfm dashboard`; 0: any port; empty: none")
]
TokenFile = Annotated[Path | None, typer.Option(help="Who may act through the page, as of `rfm dashboard`")]
Security = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Certificates, as of `rfm security init`; page and metrics have TLS then")
]
Markers = Annotated[bool, typer.Option(help="Offer markers for rviz, <robot>/rfm/markers")]
Record = Annotated[bool, typer.Option("--record", help="Record it all, as `rfm record` does")]
RecordTo = Annotated[Path | None, typer.Option(help="Folder of the recording; default: recordings/<time>")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the summary's figures there")]
SvgFile = Annotated[Path | None, typer.Option("--svg", help="Write a picture of the last view there")]


def up(
    file: FactoryArgument = None,
    host: Host = "",
    on: Cluster = "",
    ray_address: RayAddress = "",
    ray_patience: RayPatience = Options.ray_patience_s,
    seconds: Seconds = 0.0,
    episodes: Episodes = 0,
    domain: Domain = -1,
    namespace: Namespace = "",
    profiles: Profiles = None,
    logs: Logs = None,
    log_level: Level = LogLevel.INFO,
    foreman: Foreman = True,
    end_on_score: EndOnScore = False,
    metrics: Metrics = -1,
    metrics_address: MetricsAddress = "127.0.0.1",
    dashboard: Dashboard = "",
    token_file: TokenFile = None,
    security: Security = None,
    markers: Markers = False,
    record: Record = False,
    record_to: RecordTo = None,
    json_file: JsonFile = None,
    svg_file: SvgFile = None,
) -> None:
    """Starts a factory on this machine, this machine's part of one, or one on a Ray cluster; Ctrl-C stops all of it.

    Examples:  rfm up   |   rfm up my_factory.yaml --seconds 60   |   rfm up my_factory.yaml --host gpu_a   |   rfm up --on ray

    Exit code: 0, or 1 when a process kept failing or the audit log that was recorded is incomplete.
    """
    from ros2_rfm_serving.factory import load_factory

    work: dict[str, Any] = {"end_on_score": end_on_score}  # without end: an episode is final when the next one begins
    factory = load_factory(file or quickstart())
    options = Options(
        host=host,
        on=on,
        ray_address=ray_address,
        ray_patience_s=ray_patience,
        seconds=seconds,
        episodes=episodes,
        domain=domain,
        namespace=namespace or factory.discovery.namespace,
        logs=logs or new_logs(),
        log_level=log_level.value,
        work=work if foreman else None,
        svg_file=svg_file,
        profiles=profiles,
        metrics=metrics,
        metrics_address=metrics_address,
        markers=markers,
        record=record_to or (new_recording() if record else None),
        dashboard=dashboard,
        token_file=token_file,
        security=security,
    )
    _end(run_factory(factory, options), json_file)


def _end(outcome: Outcome, json_file: Path | None) -> None:
    """Report the outcome. Raises: `typer.Exit`."""
    ignore_signals()  # nothing else remains to be done
    if json_file:
        from ros2_rfm_serving.monitoring.summary import as_json

        json_file.write_text(as_json(outcome.board), encoding="utf-8")
    if outcome.incomplete and not outcome.failed:
        raise typer.Exit(1)
    if outcome.failed:
        console.print(f"gave up on: {', '.join(outcome.failed)}", style="red", markup=False)
        raise typer.Exit(1)
