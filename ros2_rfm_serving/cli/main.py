"""`rfm`: the command's front door. Each verb lives in its own module, which is imported when it is asked for."""

from __future__ import annotations

import sys

from ros2_rfm_serving.cli.verbs import verbs_app
from ros2_rfm_serving.errors import RfmError

VERBS = {
    "demo": "ros2_rfm_serving.cli.demo:demo",
    "up": "ros2_rfm_serving.cli.up:up",
    "connect": "ros2_rfm_serving.cli.connect:connect",
    "robot": "ros2_rfm_serving.cli.robot:robot",
    "drain": "ros2_rfm_serving.cli.drain:drain",
    "order": "ros2_rfm_serving.cli.order:order",
    "deploy": "ros2_rfm_serving.cli.deploy:deploy",
    "zenoh": "ros2_rfm_serving.cli.zenoh:zenoh",
    "status": "ros2_rfm_serving.cli.status:status",
    "why": "ros2_rfm_serving.cli.why:why",
    "metrics": "ros2_rfm_serving.cli.metrics:metrics",
    "dashboard": "ros2_rfm_serving.cli.dashboard:dashboard",
    "foxglove": "ros2_rfm_serving.cli.foxglove:foxglove",
    "record": "ros2_rfm_serving.cli.record:record",
    "check": "ros2_rfm_serving.cli.check:check",
    "plan": "ros2_rfm_serving.cli.plan:plan",
    "simulate": "ros2_rfm_serving.cli.simulate:simulate",
    "capacity": "ros2_rfm_serving.cli.capacity:capacity",
    "compile": "ros2_rfm_serving.cli.compile:compile_",
    "doctor": "ros2_rfm_serving.cli.doctor:doctor",
    "env": "ros2_rfm_serving.cli.env:env",
    "profile": "ros2_rfm_serving.cli.profile:profile",
    "tune": "ros2_rfm_serving.cli.tune:tune",
    "parity": "ros2_rfm_serving.cli.parity:parity",
    "train": "ros2_rfm_serving.cli.train:train",
    "import": "ros2_rfm_serving.cli.bundle:import_",
    "export": "ros2_rfm_serving.cli.export:export",
    "replay": "ros2_rfm_serving.cli.replay:replay",
    "audit": "ros2_rfm_serving.cli.audit:app",
    "bench": "ros2_rfm_serving.cli.bench:app",
    "bundle": "ros2_rfm_serving.cli.bundle:app",
    "netlink": "ros2_rfm_serving.benchmarks.network.netlink:app",
    "reproduce": "ros2_rfm_serving.cli.reproduce:app",
    "security": "ros2_rfm_serving.cli.security:app",
}
app = verbs_app(VERBS, help="A fleet of robots shares a pool of GPUs: declare the factory, get a serving schedule, launch it.")


def main() -> None:
    try:
        app()
    except RfmError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
