"""Robots of other delays, conditioned each in its own way, of one server in which one policy after the other is placed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from rfm_serving import msg

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
from test.waiting import eventually

from .server_fleet import HEADER, JPEG, STARTS_S, Fleet

ROBOTS = {"r0": Conditioning.NONE, "r1": Conditioning.GUIDED, "r2": Conditioning.GUIDED, "r3": Conditioning.PREFIX}
"""With as many steps of delay as its number; who cannot continue prefixes is guided, and so are all who can neither"""
NODE = ("-m", "ros2_rfm_serving.ros.model_server_node")


class Arms(Fleet):
    def __init__(self) -> None:
        super().__init__(*ROBOTS)
        self._rng = np.random.default_rng(0)
        self.says = self.create_publisher(msg.Schedule, qos.Names().schedule, qos.SCHEDULE)
        self.asked: dict[tuple[str, int], tuple[ObservationRequest, Conditioning]] = {}

    def place(self, model: str, epoch: int, batching: str = "continuous") -> None:
        placement = Placement(
            server="s1",
            model=model,
            components=(SYSTEM1,),
            gpu_type="CPU",
            batching=batching,
            batch_size=4,
            max_sessions=8,
            predicted_p99_s=0.1,
        )
        schedule = Schedule(epoch=epoch, placements=(placement,), routes=(), predicted_actions_hz=0.0, policy="test")
        self.says.publish(convert.schedule_to(schedule, "test"))
        self.wait(lambda: self.status and self.status.schedule_epoch == epoch, STARTS_S, what=f"{model}'s placement")
        self.wait(
            lambda: self.status.state == msg.ServerStatus.READY and self.status.model == model, STARTS_S, what=f"{model}, ready"
        )

    def arrive(self, engine: Engine) -> dict[str, Conditioning]:
        able, ways = engine.contract.conditionings, dict[str, Conditioning]()
        for robot, way in ROBOTS.items():
            ways[robot] = next(w for w in (way, Conditioning.GUIDED, Conditioning.NONE) if w in able)
            answer = self.arrives(robot, engine, ways[robot])
            assert answer.success, answer.error_msg
        return ways

    def arrives(self, robot: str, engine: Engine, conditioning: Conditioning = Conditioning.NONE) -> Any:
        """The answer to its session."""
        names = {"action_names": engine.contract.action_names, "cameras": engine.contract.cameras}
        return self.open(robot, state_size=engine.contract.state_size, conditioning=conditioning, **names)

    def request_all(self, ways: dict[str, Conditioning], engine: Engine) -> None:
        """In one breath: a server may answer one before the next would have been made."""
        for message in [self._message(robot, way, engine) for robot, way in ways.items()]:
            self.out.publish(message)

    def is_answered(self, robot: str, way: Conditioning, engine: Engine) -> None:
        """Once more; best effort, so asked again until it is."""
        before = len(self.chunks[robot])

        def heard() -> bool:
            self.request_all({robot: way}, engine)
            return bool(eventually(lambda: len(self.chunks[robot]) > before, 5.0, self._turn))

        self.wait(heard, what=f"{robot}'s answer")

    def _message(self, robot: str, way: Conditioning, engine: Engine) -> Any:
        delay = list(ROBOTS).index(robot)
        self._sequence += 1
        rows = 0 if way is Conditioning.NONE else delay
        prefix = self._rng.uniform(-0.5, 0.5, (rows, len(engine.contract.action_names))).astype(np.float32)
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


def row_of(observation: ObservationRequest, way: Conditioning, num_steps: int = 0) -> InferenceRequest:
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
        num_steps=num_steps,
    )


@contextmanager
def arms_of(folder: Path, entries: Sequence[str], node: Sequence[str] = NODE, **given: object) -> Iterator[Arms]:
    """And their server's process, of which `entries` are the catalogue. node: Python's arguments; given: parameters."""
    (folder / "models.yaml").write_text("models:\n" + "".join(f"  {entry}\n" for entry in entries))
    (folder / "none.csv").write_text(HEADER)
    given = {"server": "s1", "model": "''", "batch_size": 4, "max_sessions": 8, "profiles_folder": folder, **given}
    arguments = [part for name, value in given.items() for part in ("-p", f"{name}:={value}")]
    process = subprocess.Popen([sys.executable, "-W", "ignore", *node, "--ros-args", *arguments], start_new_session=True)
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


def get_what_they_would_get_alone(arms: Arms, alone: Engine, same: float) -> dict[str, Conditioning]:
    """Of the model that is placed: all ask until each has been answered, some in company. Returns how each is conditioned.

    same: of a chunk's largest value, or of 1.
    """
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
        theirs = answer.chunk_model
        assert theirs is not None
        assert np.abs(convert.tensor_from(chunk.chunk_model) - theirs).max() <= same * max(1.0, np.abs(theirs).max())
        assert way is not Conditioning.PREFIX or chunk.inference_delay_steps == observation.inference_delay_steps == 3
    assert Conditioning.PREFIX not in alone.contract.conditionings or ways["r3"] is Conditioning.PREFIX
    return ways
