"""`rfm bench`: measurements, side by side in one run."""

from __future__ import annotations

from ros2_rfm_serving.cli.verbs import verbs_app

VERBS = {
    "path": "lab.benchmarks.path.report:path",
    "policy": "lab.benchmarks.policy:policy",
    "engine": "lab.benchmarks.engine:engine",
    "robot": "lab.benchmarks.robot:robot",
    "robots": "lab.benchmarks.robots.report:robots",
    "record": "lab.benchmarks.record.report:record",
    "rtc": "lab.benchmarks.rtc.run:rtc",
    "stages": "lab.benchmarks.stages:stages",
    "safety": "lab.benchmarks.safety:safety",
    "network": "lab.benchmarks.network.report:network",
    "neighbour": "lab.benchmarks.neighbour.report:neighbour",
    "serving": "lab.benchmarks.serving.report:serving",
    "scheduler": "lab.benchmarks.scheduler:scheduler",
    "dispatch": "lab.benchmarks.dispatch.report:dispatch",
    "precision": "lab.benchmarks.precision:precision",
    "footprint": "lab.benchmarks.footprint.report:footprint",
    "predictions": "lab.benchmarks.predictions.report:predictions",
    "decoding": "lab.benchmarks.decoding:decoding",
    "fleet": "lab.benchmarks.fleet.report:fleet",
    "continuous": "lab.benchmarks.continuous.report:continuous",
    "frames": "lab.benchmarks.frames:frames",
    "steps": "lab.benchmarks.steps:steps",
    "tasks": "lab.benchmarks.tasks:tasks",
    "whatif": "lab.benchmarks.whatif:whatif",
    "dashboard": "lab.benchmarks.dashboard.report:dashboard",
    "simulation": "lab.benchmarks.simulation:simulation",
    "gpu": "lab.benchmarks.gpu.report:gpu",
}
app = verbs_app(VERBS, help="Measurements, side by side in one run.")
