"""`rfm bench`: measurements, side by side in one run."""

from __future__ import annotations

import typer

from ros2_rfm_serving.benchmarks.continuous.report import continuous
from ros2_rfm_serving.benchmarks.dashboard.report import dashboard
from ros2_rfm_serving.benchmarks.decoding import decoding
from ros2_rfm_serving.benchmarks.dispatch.report import dispatch
from ros2_rfm_serving.benchmarks.engine import engine
from ros2_rfm_serving.benchmarks.fleet.report import fleet
from ros2_rfm_serving.benchmarks.footprint.report import footprint
from ros2_rfm_serving.benchmarks.frames import frames
from ros2_rfm_serving.benchmarks.gpu.report import gpu
from ros2_rfm_serving.benchmarks.neighbour.report import neighbour
from ros2_rfm_serving.benchmarks.network.report import network
from ros2_rfm_serving.benchmarks.path.report import path
from ros2_rfm_serving.benchmarks.policy import policy
from ros2_rfm_serving.benchmarks.precision import precision
from ros2_rfm_serving.benchmarks.predictions.report import predictions
from ros2_rfm_serving.benchmarks.record.report import record
from ros2_rfm_serving.benchmarks.robot import robot
from ros2_rfm_serving.benchmarks.robots.report import robots
from ros2_rfm_serving.benchmarks.rtc.run import rtc
from ros2_rfm_serving.benchmarks.safety import safety
from ros2_rfm_serving.benchmarks.scheduler import scheduler
from ros2_rfm_serving.benchmarks.serving.report import serving
from ros2_rfm_serving.benchmarks.simulation import simulation
from ros2_rfm_serving.benchmarks.stages import stages
from ros2_rfm_serving.benchmarks.steps import steps
from ros2_rfm_serving.benchmarks.tasks import tasks
from ros2_rfm_serving.benchmarks.whatif import whatif

app = typer.Typer(help="Measurements, side by side in one run.", no_args_is_help=True)
COMMANDS = (path, policy, engine, robot, robots, record, rtc, stages, safety, network, neighbour, serving, scheduler, dispatch)
for command in (
    *COMMANDS,
    precision,
    footprint,
    predictions,
    decoding,
    fleet,
    continuous,
    frames,
    steps,
    tasks,
    whatif,
    dashboard,
    simulation,
    gpu,
):
    app.command()(command)
