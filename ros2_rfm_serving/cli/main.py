"""`rfm`: the command's front door. Each subcommand lives in its own module and imports what it needs when it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer

from ros2_rfm_serving.benchmarks.network import netlink
from ros2_rfm_serving.cli import (
    audit,
    bench,
    bundle,
    capacity,
    check,
    compile,
    dashboard,
    deploy,
    doctor,
    drain,
    env,
    export,
    foxglove,
    metrics,
    order,
    parity,
    plan,
    profile,
    record,
    replay,
    reproduce,
    robot,
    security,
    simulate,
    status,
    train,
    tune,
    up,
    why,
    zenoh,
)
from ros2_rfm_serving.errors import RfmError

app = typer.Typer(
    help="A fleet of robots shares a pool of GPUs: declare the factory, get a serving schedule, launch it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
COMMANDS: dict[str, Callable[..., Any]] = {
    "up": up.up,
    "robot": robot.robot,
    "drain": drain.drain,
    "order": order.order,
    "deploy": deploy.deploy,
    "zenoh": zenoh.zenoh,
    "status": status.status,
    "why": why.why,
    "metrics": metrics.metrics,
    "dashboard": dashboard.dashboard,
    "foxglove": foxglove.foxglove,
    "record": record.record,
    "check": check.check,
    "plan": plan.plan,
    "simulate": simulate.simulate,
    "capacity": capacity.capacity,
    "compile": compile.compile_,
    "doctor": doctor.doctor,
    "env": env.env,
    "profile": profile.profile,
    "tune": tune.tune,
    "parity": parity.parity,
    "train": train.train,
    "import": bundle.import_,
    "export": export.export,
    "replay": replay.replay,
}
for name, command in COMMANDS.items():
    app.command(name)(command)
app.add_typer(audit.app, name="audit")
app.add_typer(bench.app, name="bench")
app.add_typer(bundle.app, name="bundle")
app.add_typer(netlink.app, name="netlink")
app.add_typer(reproduce.app, name="reproduce")
app.add_typer(security.app, name="security")


def main() -> None:
    try:
        app()
    except RfmError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
