"""Published architectures at toy size, served over DDS: robots of other delays, one guided, one continuing a prefix where the model
was trained to, share batches, and each gets what it would get alone."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
from rfm_serving import msg

from ros2_rfm_serving.engines.architectures.engine import load_architecture
from ros2_rfm_serving.engines.architectures.names import ARCHITECTURES
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.server import images
from ros2_rfm_serving.types import (
    SYSTEM1,
    Conditioning,
    EncodedImage,
    InferenceRequest,
    ObservationRequest,
    Placement,
    RequestId,
    Schedule,
)
from test.engines.parity.common import RECORDED as ALL
from test.ros.server_fleet import HEADER, JPEG, Fleet

RECORDED = [name for name in ALL if name in ARCHITECTURES]
"""One of each; who else recorded it makes no difference to the loop"""
ROBOTS = {"r0": Conditioning.NONE, "r1": Conditioning.GUIDED, "r2": Conditioning.GUIDED, "r3": Conditioning.PREFIX}
"""With as many steps of delay as its number; who cannot continue prefixes is guided, and so are all who can neither"""
NODE = "import test.engines.operators; from ros2_rfm_serving.ros import model_server_node as node; node.main()"
SAME = 1e-4
"""Toys' chunks are a few units large; rows in company take other kernels"""
ROUNDED = 5e-2
"""Where activations are of 8 bits, a value between two steps goes either way: up to 1.6e-2 in 100 chunks of the toy, in float64"""


class Arms(Fleet):
    def __init__(self) -> None:
        super().__init__(*ROBOTS)
        self._rng = np.random.default_rng(0)
        self.says = self.create_publisher(msg.Schedule, qos.Names().schedule, qos.SCHEDULE)
        self.asked: dict[tuple[str, int], tuple[ObservationRequest, Conditioning]] = {}

    def place(self, model: str, epoch: int) -> None:
        placement = Placement(
            server="s1",
            model=model,
            components=(SYSTEM1,),
            gpu_type="CPU",
            batching="continuous",
            batch_size=4,
            max_sessions=8,
            predicted_p99_s=0.1,
        )
        schedule = Schedule(epoch=epoch, placements=(placement,), routes=(), predicted_actions_hz=0.0, policy="test")
        self.says.publish(convert.schedule_to(schedule, "test"))
        self.wait(lambda: self.status and self.status.schedule_epoch == epoch, what=f"{model}'s placement")
        self.wait(lambda: self.status.state == msg.ServerStatus.READY and self.status.model == model, what=f"{model}, ready")

    def arrive(self, engine: Engine) -> dict[str, Conditioning]:
        able, ways = engine.contract.conditionings, dict[str, Conditioning]()
        names = {"action_names": engine.contract.action_names, "cameras": engine.contract.cameras}
        for robot, way in ROBOTS.items():
            ways[robot] = next(w for w in (way, Conditioning.GUIDED, Conditioning.NONE) if w in able)
            answer = self.open(robot, state_size=engine.contract.state_size, conditioning=ways[robot], **names)
            assert answer.success, answer.error_msg
        return ways

    def request_all(self, ways: dict[str, Conditioning], engine: Engine) -> None:
        """In one breath: a server may answer one before the next would have been made."""
        for message in [self._message(robot, way, engine) for robot, way in ways.items()]:
            self.out.publish(message)

    def _message(self, robot: str, way: Conditioning, engine: Engine) -> Any:
        delay = 0 if way is Conditioning.NONE else list(ROBOTS).index(robot)
        self._sequence += 1
        prefix = self._rng.uniform(-0.5, 0.5, (delay, len(engine.contract.action_names))).astype(np.float32)
        observation = ObservationRequest(
            id=RequestId(robot=robot, component=SYSTEM1, session_epoch=self.epochs[robot], episode=1, sequence=self._sequence),
            stamp_ns=0,
            instruction="push" if delay % 2 else "open the drawer",
            state=self._rng.uniform(-1, 1, engine.contract.state_size).astype(np.float32),
            images=tuple(EncodedImage(camera=camera, format="jpeg", data=JPEG) for camera in engine.contract.cameras),
            inference_delay_steps=delay,
            prefix_model=prefix,
            prefix_robot=prefix,
        )
        self.asked[robot, self._sequence] = observation, way
        return convert.observation_to(observation)

    def received(self) -> list[Any]:
        return [message for chunks in self.chunks.values() for _, message in chunks]


def row_of(observation: ObservationRequest, way: Conditioning) -> InferenceRequest:
    """As an engine gets it."""
    return InferenceRequest(
        id=observation.id,
        instruction=observation.instruction,
        state=observation.state,
        images={image.camera: images.decode(image) for image in observation.images},
        inference_delay_steps=observation.inference_delay_steps,
        prefix_model=observation.prefix_model,
        prefix_robot=observation.prefix_robot,
        conditioning=way,
    )


@pytest.fixture(scope="module")
def arms(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arms]:
    """And a server process, in which one architecture after the other is placed."""
    from domain_coordinator import domain_id

    folder = tmp_path_factory.mktemp("models")
    entries = [f"  {name}: {{engine: bundle, bundle: {name}/bundle, parity: at_start}}\n" for name in RECORDED]
    (folder / "models.yaml").write_text("models:\n" + "".join(entries))
    (folder / "none.csv").write_text(HEADER)
    for name, made in folders.items():
        (folder / name).symlink_to(made)
    given = {"server": "s1", "model": "''", "batch_size": 4, "max_sessions": 8, "image_width_px": 64, "image_height_px": 64}
    given |= {"profiles_folder": folder, "models_folder": folder}
    arguments = [part for name, value in given.items() for part in ("-p", f"{name}:={value}")]
    with domain_id() as domain, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROS_DOMAIN_ID", str(domain))
        command = [sys.executable, "-W", "ignore", "-c", NODE, "--ros-args", *arguments]
        process = subprocess.Popen(command, start_new_session=True)
        rclpy.init()
        fleet = Arms()
        try:
            yield fleet
        finally:
            fleet.executor_.shutdown()
            fleet.destroy_node()
            rclpy.try_shutdown()
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("name", RECORDED)
def test_robots_with_other_delays_share_batches_and_get_what_they_would_get_alone(
    name: str, arms: Arms, folders: dict[str, Path]
) -> None:
    alone = load_architecture(name, folders[name] / "bundle")
    arms.place(name, 1 + RECORDED.index(name))
    ways = arms.arrive(alone)
    arms.chunks.clear()
    for _ in range(1000):
        arms.request_all(ways, alone)
        arms.spin(0.1)
        received = arms.received()
        everybody = {chunk.id.robot for chunk in received} == set(ROBOTS)
        if len(received) > 8 and everybody and any(chunk.served.batch_size > 1 for chunk in received):
            break
    assert {chunk.id.robot for chunk in received} == set(ROBOTS) and any(chunk.served.batch_size > 1 for chunk in received)
    for chunk in received[:12]:
        observation, way = arms.asked[chunk.id.robot, chunk.id.sequence]
        (answer,) = alone.infer([row_of(observation, way)])
        ours = convert.tensor_from(chunk.chunk_model)
        assert np.abs(ours - answer.chunk_model).max() <= (ROUNDED if name == "bitvla" else SAME) * max(
            1.0, np.abs(answer.chunk_model).max()
        )  # type: ignore[union-attr]
        assert way is not Conditioning.PREFIX or chunk.inference_delay_steps == observation.inference_delay_steps == 3
    assert Conditioning.PREFIX not in alone.contract.conditionings or ways["r3"] is Conditioning.PREFIX
