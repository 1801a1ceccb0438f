"""`rfm bench`: measurements, side by side in one run."""

from __future__ import annotations

from ros2_rfm_serving.cli.verbs import verbs_app

VERBS = {
    "path": "ros2_rfm_serving.benchmarks.path.report:path",
    "policy": "ros2_rfm_serving.benchmarks.policy:policy",
    "engine": "ros2_rfm_serving.benchmarks.engine:engine",
    "robot": "ros2_rfm_serving.benchmarks.robot:robot",
    "robots": "ros2_rfm_serving.benchmarks.robots.report:robots",
    "record": "ros2_rfm_serving.benchmarks.record.report:record",
    "rtc": "ros2_rfm_serving.benchmarks.rtc.run:rtc",
    "stages": "ros2_rfm_serving.benchmarks.stages:stages",
    "safety": "ros2_rfm_serving.benchmarks.safety:safety",
    "network": "ros2_rfm_serving.benchmarks.network.report:network",
    "neighbour": "ros2_rfm_serving.benchmarks.neighbour.report:neighbour",
    "serving": "ros2_rfm_serving.benchmarks.serving.report:serving",
    "scheduler": "ros2_rfm_serving.benchmarks.scheduler:scheduler",
    "dispatch": "ros2_rfm_serving.benchmarks.dispatch.report:dispatch",
    "precision": "ros2_rfm_serving.benchmarks.precision:precision",
    "footprint": "ros2_rfm_serving.benchmarks.footprint.report:footprint",
    "predictions": "ros2_rfm_serving.benchmarks.predictions.report:predictions",
    "decoding": "ros2_rfm_serving.benchmarks.decoding:decoding",
    "fleet": "ros2_rfm_serving.benchmarks.fleet.report:fleet",
    "continuous": "ros2_rfm_serving.benchmarks.continuous.report:continuous",
    "frames": "ros2_rfm_serving.benchmarks.frames:frames",
    "steps": "ros2_rfm_serving.benchmarks.steps:steps",
    "tasks": "ros2_rfm_serving.benchmarks.tasks:tasks",
    "whatif": "ros2_rfm_serving.benchmarks.whatif:whatif",
    "dashboard": "ros2_rfm_serving.benchmarks.dashboard.report:dashboard",
    "simulation": "ros2_rfm_serving.benchmarks.simulation:simulation",
    "gpu": "ros2_rfm_serving.benchmarks.gpu.report:gpu",
}
app = verbs_app(VERBS, help="Measurements, side by side in one run.")
