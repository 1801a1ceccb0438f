"""The command `rfm`. Each verb lives in its own module, which is imported when a user calls it."""

from __future__ import annotations

import sys

from ros2_rfm_serving.cli.verbs import verbs_app
from ros2_rfm_serving.errors import RfmError

VERBS = {
    "demo": "ros2_rfm_serving.cli.demo:demo",
    "up": "ros2_rfm_serving.cli.up:up",
    "connect": "ros2_rfm_serving.cli.connect:connect",
    "robot": "ros2_rfm_serving.cli.robot:robot",
    "task": "ros2_rfm_serving.cli.task:task",
    "drain": "ros2_rfm_serving.cli.drain:drain",
    "order": "ros2_rfm_serving.cli.order:order",
    "deploy": "ros2_rfm_serving.cli.deploy:deploy",
    "zenoh": "ros2_rfm_serving.cli.zenoh:zenoh",
    "status": "ros2_rfm_serving.cli.status:status",
    "why": "ros2_rfm_serving.cli.why:why",
    "topic": "ros2_rfm_serving.cli.topic:app",
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
    "train": "lab.training.train:train",
    "import": "ros2_rfm_serving.cli.bundle:import_",
    "export": "ros2_rfm_serving.cli.export:export",
    "replay": "ros2_rfm_serving.cli.replay:replay",
    "audit": "ros2_rfm_serving.cli.audit:app",
    "bench": "ros2_rfm_serving.cli.bench:app",
    "bundle": "ros2_rfm_serving.cli.bundle:app",
    "netlink": "lab.benchmarks.network.netlink:app",
    "reproduce": "ros2_rfm_serving.cli.reproduce:app",
    "security": "ros2_rfm_serving.cli.security:app",
}
GROUPS = {
    "Run a factory": {
        "up": "Start a factory: all of it, one machine's part, or one on Ray",
        "demo": "Show the factory of three simulated arms, without a clone",
        "connect": "Write a robot's files from a live graph, and prove them",
        "robot": "Add a robot to a running factory",
        "task": "Give a robot a task and follow it until its end",
        "order": "Pause, resume, abort, cancel or release a robot",
        "drain": "Let a server finish its work and take nothing new",
        "deploy": "Write manifests for Kubernetes, Compose or systemd",
        "zenoh": "Write the configurations of Zenoh routers and sessions",
        "security": "Make certificates, permissions and tokens",
        "doctor": "Say whether this machine is ready, and what is missing",
        "env": "Print the ROS environment of a factory, for a shell",
    },
    "Declare and plan": {
        "check": "Validate a factory descriptor and the files of its robots",
        "plan": "Show the schedule that a factory gets",
        "simulate": "Run a factory in virtual time",
        "capacity": "Say how many GPUs these robots need, or the reverse",
        "tune": "Find the fastest pipeline of a task that still succeeds",
        "compile": "Compile virtual time to machine code",
    },
    "Watch": {
        "status": "Show robots, servers and the schedule of a running factory",
        "why": "Name the causes of what a factory does wrong, and the fixes",
        "topic": "List topics, print messages, measure rates, without ros2",
        "dashboard": "Serve the web page of a factory",
        "metrics": "Serve the figures of a factory to Prometheus",
        "foxglove": "Serve the graph to Foxglove",
    },
    "Record and explain": {
        "record": "Record a factory to a rosbag2 folder",
        "audit": "Verify a recording and explain why a robot moved",
        "replay": "Decide a recording again, play it, or ask what if",
        "export": "Write a recording as a LeRobotDataset",
    },
    "Models": {
        "import": "Make a bundle of a published checkpoint",
        "bundle": "Show, check and compare model bundles",
        "parity": "Compare an engine with its reference, block by block",
        "profile": "Measure latency by batch size and rate",
    },
    "In a checkout of the repository": {
        "bench": "Run the benchmarks, side by side in one run",
        "reproduce": "Run the figures of the papers again",
        "train": "Train the embedded models",
        "netlink": "Join network namespaces with a switch that delays and loses",
    },
}
"""Title -> verb -> one line. `rfm --help` shows them in this order."""
app = verbs_app(
    VERBS, help="A fleet of robots shares a pool of GPUs: declare the factory, get a serving schedule, launch it.", groups=GROUPS
)


def main() -> None:
    try:
        app()
    except RfmError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
