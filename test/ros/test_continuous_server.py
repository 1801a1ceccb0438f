"""A model server process under `batching: continuous` over real DDS, with the embedded policy: robots share solver steps, come and
go between them, and each gets the chunk that it would get alone."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import rclpy
from rfm_serving import msg

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.operate.engines import load_engine
from ros2_rfm_serving.ros.server.loading import Loaded, Loading
from ros2_rfm_serving.ros.server.settings import SPECS, ServerParams
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.types import (
    SYSTEM1,
    Conditioning,
    EncodedImage,
    ObservationRequest,
    PipelineConfig,
    Placement,
    RequestId,
    Schedule,
)

from .delayed_arms import row_of
from .server_fleet import HEADER, JPEG, STARTS_S, Fleet

CATALOGUE = """
models:
  flow: {engine: bundle, bundle: metaworld_flow}
  slow: {engine: bundle, bundle: metaworld_flow, options: {num_steps: 400}}
  whole: {engine: "test.ros.mirror_engine:build"}
"""
ROBOTS = ("r0", "r1", "r2", "r3")
STEPS = {"r1": 3, "r3": 9}
"""Solver steps that a session asks for; the others take the model's own number"""
SHORT_STEPS = 8
"""Of the four hundred of `slow`."""
SAME = 1e-5


class Arms(Fleet):
    """Robots as the embedded policy knows them, each with an inference delay of its own."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(*ROBOTS)
        self.contract, self._rng = engine.contract, np.random.default_rng(0)
        self.asked: dict[tuple[str, int], ObservationRequest] = {}

    def arrive(self, num_steps: Mapping[str, int] = MappingProxyType({})) -> None:
        names = {"action_names": self.contract.action_names, "cameras": self.contract.cameras}
        for robot in ROBOTS:
            asked = {**names, "state_size": self.contract.state_size, "conditioning": Conditioning.PREFIX}
            answer = self.open(robot, num_steps=num_steps.get(robot, 0), **asked)
            assert answer.success, answer.error_msg

    def request(self, robot: str) -> None:
        delay = ROBOTS.index(robot)
        self._sequence += 1
        prefix = self._rng.uniform(-0.5, 0.5, (delay, len(self.contract.action_names))).astype(np.float32)
        observation = ObservationRequest(
            id=RequestId(robot=robot, component=SYSTEM1, session_epoch=self.epochs[robot], episode=1, sequence=self._sequence),
            stamp_ns=0,
            instruction="push",
            state=self._rng.uniform(-1, 1, self.contract.state_size).astype(np.float32),
            images=tuple(EncodedImage(camera=camera, format="jpeg", data=JPEG) for camera in self.contract.cameras),
            inference_delay_steps=delay,
            prefix_model=prefix,
            prefix_robot=prefix,
        )
        self.asked[robot, self._sequence] = observation
        self.out.publish(convert.observation_to(observation))

    def ask_until(self, condition: Callable[[], bool]) -> None:
        """All robots at once, then all but one and spread out, until it holds: who meets whom depends on the machine."""
        for turn in range(1000):
            for robot in ROBOTS[turn % 2 :]:
                self.request(robot)
                self.spin(0.002 * (turn % 2))
            self.spin(0.05)
            if condition():
                return
        raise AssertionError("1000 turns, and nobody shared a step")

    def all_in_flight(self) -> None:
        """One row of each; that of r1 is short, and when it is answered the others are on their way. Again where this process was
        kept from hearing of it in time."""
        self.arrive({"r1": SHORT_STEPS})

        def others_run() -> bool:
            self.chunks.clear()
            for robot in ROBOTS:
                self.request(robot)
            self.wait(lambda: self.chunks["r1"], what="the short one")
            return self.heard_of() == {"r1"}

        self.wait(lambda: others_run() or (self.wait(lambda: self.heard_of() == set(ROBOTS)) and False), what="rows in flight")

    def heard_of(self) -> set[str]:
        return {robot for robot, chunks in self.chunks.items() if chunks}

    @property
    def received(self) -> list[Any]:
        return [message for chunks in self.chunks.values() for _, message in chunks]


@pytest.fixture(scope="module")
def alone() -> Engine:
    """The same model in this process."""
    engine = load_engine("rfm/metaworld-flow")
    engine.prepare(1)
    return engine


@contextmanager
def process_of(folder: Path, model: str, **parameters: object) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "models.yaml").write_text(CATALOGUE)
    (folder / "none.csv").write_text(HEADER)
    given = {"server": "s1", "model": model, "batch_size": 8, "max_sessions": 8, "batching": "continuous", **parameters}
    given |= {"profiles_folder": folder, "models_folder": shipped("models"), "image_width_px": 96, "image_height_px": 96}
    arguments = [part for name, value in given.items() for part in ("-p", f"{name}:={value}")]
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.ros.model_server_node", "--ros-args", *arguments]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0


@contextmanager
def arms(folder: Path, engine: Engine, model: str = "flow", **parameters: object) -> Iterator[tuple[Arms, subprocess.Popen[bytes]]]:
    with process_of(folder, model, **parameters) as process:
        rclpy.init()
        fleet = Arms(engine)
        try:
            fleet.wait(lambda: fleet.status and fleet.status.state == msg.ServerStatus.READY, STARTS_S, "ready")
            fleet.arrive()
            yield fleet, process
        finally:
            fleet.executor_.shutdown()
            fleet.destroy_node()
            rclpy.try_shutdown()


def test_robots_with_other_delays_and_numbers_of_steps_share_turns_and_get_what_they_would_get_alone(
    ros_domain: int, tmp_path: Path, alone: Engine
) -> None:
    with arms(tmp_path, alone) as (fleet, _):
        with pytest.raises(AssertionError, match="num_steps: the robot asks for 11 solver steps, the model takes 1 to 10"):
            fleet.arrive({"r0": 11})
        fleet.arrive(STEPS)
        fleet.ask_until(lambda: len(fleet.received) > 30 and any(chunk.served.batch_size > 1 for chunk in fleet.received))
        received = fleet.received
        for chunk in received:
            asked = fleet.asked[chunk.id.robot, chunk.id.sequence]
            (answer,) = alone.infer([row_of(asked, Conditioning.PREFIX, STEPS.get(chunk.id.robot, 0))])
            assert np.abs(convert.tensor_from(chunk.chunk_model) - answer.chunk_model).max() <= SAME  # type: ignore[union-attr]
            assert chunk.inference_delay_steps == ROBOTS.index(chunk.id.robot)
        assert {chunk.id.robot for chunk in received} == set(ROBOTS)


def test_a_row_whose_session_is_closed_leaves_and_an_end_answers_all_that_are_in_flight(
    ros_domain: int, tmp_path: Path, alone: Engine
) -> None:
    with arms(tmp_path, alone, "slow", drain_timeout_s=50.0) as (fleet, process):
        fleet.all_in_flight()
        fleet.close("r0")
        fleet.wait(lambda: fleet.heard_of() == {"r1", "r2", "r3"}, what="those that stay")
        fleet.wait(lambda: fleet.refused("session_ended") == 1, what="the one that left")
        assert fleet.heard_of() == {"r1", "r2", "r3"}
        number = len(fleet.received)
        fleet.request("r1")
        fleet.wait(lambda: len(fleet.received) == number + 1, what="the next one")

        fleet.all_in_flight()
        process.send_signal(signal.SIGTERM)
        fleet.wait(lambda: fleet.heard_of() == set(ROBOTS), what="rows in flight")
        assert process.wait(timeout=120) == 0


def test_what_answers_whole_chunks_only_is_not_served_so_and_the_key_is_named(
    ros_domain: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with process_of(tmp_path, "whole"):
        rclpy.init()
        fleet = Fleet()
        try:
            fleet.wait(lambda: fleet.status and fleet.status.state == msg.ServerStatus.FAILED, what="the refusal")
        finally:
            fleet.executor_.shutdown()
            fleet.destroy_node()
            rclpy.try_shutdown()
    said = capfd.readouterr().err
    assert "batching: 'whole' offers whole chunks only" in said and "fixed, saturation, wait" in said


def test_batching_is_as_the_schedule_has_planned_it_and_changes_with_it(ros_domain: int, tmp_path: Path, alone: Engine) -> None:
    """Only servers that batch continuously open pipelined sessions."""
    with process_of(tmp_path, "''", batching="fixed"):
        rclpy.init()
        fleet = Arms(alone)
        says = fleet.create_publisher(msg.Schedule, qos.Names().schedule, qos.SCHEDULE)
        names = {"action_names": alone.contract.action_names, "cameras": alone.contract.cameras}
        asked = {**names, "state_size": alone.contract.state_size, "pipelining": PipelineConfig(pp_generation=2)}
        try:
            for epoch, batching in enumerate(("continuous", "fixed", "continuous"), 1):
                placed = {"model": "flow", "gpu_type": "CPU", "batching": batching, "batch_size": 1, "max_sessions": 8}
                placement = Placement(server="s1", components=(SYSTEM1,), predicted_p99_s=0.1, **placed)  # type: ignore[arg-type]
                schedule = Schedule(epoch=epoch, placements=(placement,), routes=(), predicted_actions_hz=0.0, policy="test")
                says.publish(convert.schedule_to(schedule, "test"))
                fleet.wait(lambda epoch=epoch: fleet.status and fleet.status.schedule_epoch == epoch, what=f"epoch {epoch}")
                fleet.wait(lambda: fleet.status.state == msg.ServerStatus.READY, STARTS_S, "ready")
                answer = fleet.open("r0", **asked)
                assert answer.success is (batching == "continuous"), answer.error_msg
                assert answer.success or "batches that begin and end together" in answer.error_msg
                if answer.success:
                    fleet.close("r0")
        finally:
            fleet.executor_.shutdown()
            fleet.destroy_node()
            rclpy.try_shutdown()


def test_its_costs_are_measured_before_it_is_ready(tmp_path: Path) -> None:
    """A perception, a solver step and a whole batch of every size: who comes first is served as who comes last."""
    (tmp_path / "models.yaml").write_text(CATALOGUE)
    (tmp_path / "none.csv").write_text(HEADER)
    given = {name: spec.default for name, spec in SPECS.items()}
    given |= {"profiles_folder": tmp_path, "models_folder": shipped("models"), "model": "flow", "batching": "continuous"}
    params = ServerParams(**{**given, "batch_size": 4, "max_sessions": 8})  # type: ignore[arg-type]
    placement = params.placed(None)
    assert placement is not None
    loading = Loading(params, placement, print)
    assert loading.wait(120) and isinstance(loading.outcome, Loaded)
    costs = loading.outcome.server.config.costs
    assert len(costs.perceive_s) == len(costs.step_s) == len(costs.whole_s) == 4 and min(costs.step_s) > 0
    assert min(*costs.perceive_s, *costs.whole_s) > 0 and loading.outcome.server.is_idle
