"""A checkpoint whose processor remembers, served to several robots: what it remembers is of one session and one episode."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lerobot.processor import ObservationProcessorStep, PolicyActionProcessorStep, ProcessorStepRegistry

from ros2_rfm_serving.engines.lerobot.engine import LeRobotEngine
from ros2_rfm_serving.engines.lerobot.parity import requests_for
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import EncodedImage, InferenceRequest, ObservationRequest, RequestId, SessionRequest
from test.engines import tiny_lerobot as tiny
from test.engines.lerobot_rig import built, close


@ProcessorStepRegistry.register("test_smoothed_state")
class Smoothed(ObservationProcessorStep):
    """The policy sees the mean of the states so far in the episode; keeps the last one, for the way back."""

    made: Smoothed | None = None

    def __init__(self) -> None:
        Smoothed.made = self
        self.reset()

    def reset(self) -> None:
        self.states: list[torch.Tensor] = []

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        self.states.append(observation["observation.state"].clone())
        return {**observation, "observation.state": torch.stack(self.states).mean(dim=0)}

    def transform_features(self, features: Any) -> Any:
        return features


@ProcessorStepRegistry.register("test_from_last_state")
class FromLast(PolicyActionProcessorStep):
    """Actions are relative to the state that the step on the way in has seen last."""

    def __init__(self) -> None:
        self.smoothed = Smoothed.made

    def action(self, action: torch.Tensor) -> torch.Tensor:
        assert self.smoothed is not None
        state = self.smoothed.states[-1][..., : tiny.NUM_ACTIONS].cpu()
        return action + (state[:, None] if action.ndim == 3 else state)

    def transform_features(self, features: Any) -> Any:
        return features


@pytest.fixture(scope="module", params=["act", "smolvla"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LeRobotEngine:
    folder = tiny.save(request.param, tmp_path_factory.mktemp("remembers"))
    _insert(folder / "policy_preprocessor.json", "test_smoothed_state", 0)
    _insert(folder / "policy_postprocessor.json", "test_from_last_state", 9)
    return built(request.param, folder)


def _insert(file: Path, step: str, place: int) -> None:
    saved = json.loads(file.read_text())
    saved["steps"].insert(place, {"registry_name": step, "config": {}})
    file.write_text(json.dumps(saved))


ROBOTS = ("a", "b", "c")


def asked(engine: LeRobotEngine, turn: int, episode: int = 1, epoch: int = 1) -> list[InferenceRequest]:
    """One request of each robot, each in a state of its own, with an instruction of its own length."""
    return [
        replace(
            request,
            id=RequestId(robot=robot, component="system1", session_epoch=epoch, episode=episode, sequence=turn),
            state=np.full(tiny.STATE_SIZE, 0.3 * turn + i, np.float32),
        )
        for i, (robot, request) in enumerate(zip(ROBOTS, requests_for(engine._policy), strict=True))
    ]


def chunks(engine: LeRobotEngine, requests: Sequence[InferenceRequest]) -> list[np.ndarray]:
    return [reply.chunk_robot for reply in engine.infer(requests)]


def forgotten(engine: LeRobotEngine) -> None:
    for robot in ROBOTS:
        engine.close_session(robot, "system1", 1)


def test_robots_in_one_batch_get_what_each_gets_alone(engine: LeRobotEngine) -> None:
    forgotten(engine)
    alone = {}
    for i, robot in enumerate(ROBOTS):
        alone[robot] = [chunks(engine, [asked(engine, turn)[i]])[0] for turn in (1, 2, 3)]
    forgotten(engine)
    for turn in (1, 2, 3):
        for robot, chunk in zip(ROBOTS, chunks(engine, asked(engine, turn)), strict=True):
            assert close(chunk, alone[robot][turn - 1]), (robot, turn)


def test_memory_is_of_one_robot_whoever_asks_in_between(engine: LeRobotEngine) -> None:
    forgotten(engine)
    a = [asked(engine, turn)[0] for turn in (1, 2)]
    expected = [chunks(engine, [request])[0] for request in a]
    forgotten(engine)
    between = asked(engine, 1)[1:]
    first = chunks(engine, a[:1])[0]
    chunks(engine, between)
    assert close(first, expected[0]) and close(chunks(engine, a[1:])[0], expected[1])


def test_an_episode_begins_with_nothing_and_so_does_a_session(engine: LeRobotEngine) -> None:
    forgotten(engine)
    first, second = asked(engine, 1)[:1], asked(engine, 2)[:1]
    fresh = chunks(engine, second)[0]
    forgotten(engine)
    chunks(engine, first)
    remembering = chunks(engine, second)[0]
    assert not close(remembering, fresh)
    chunks(engine, asked(engine, 1, epoch=2)[:1])  # it has restarted
    anew = chunks(engine, asked(engine, 2, epoch=3)[:1])[0]
    assert close(anew, fresh)
    alone = chunks(engine, asked(engine, 2, episode=2, epoch=4)[:1])[0]
    chunks(engine, asked(engine, 1, episode=1, epoch=5)[:1])
    assert close(chunks(engine, asked(engine, 2, episode=2, epoch=5)[:1])[0], alone)


def test_a_server_closes_what_it_opened(engine: LeRobotEngine) -> None:
    forgotten(engine)
    engine._policy.processing.reset()
    server = ModelServer(ServerConfig(name="gpu0", batch_size=3, max_sessions=3), engine)
    nobodys = len(engine._policy.processing.sessions)  # of the request that warms it up
    template = requests_for(engine._policy)[0]
    for turn in range(3):
        epochs = {robot: server.open_session(opening(robot)).session_epoch for robot in ROBOTS}
        for robot, epoch in epochs.items():
            server.submit(observed(template, robot, epoch), float(turn))
        assert len(server.loop.step(lambda turn=turn: float(turn))) == 3
        assert len(engine._policy.processing.sessions) == nobodys + 3
    for robot, epoch in epochs.items():
        server.close_session(robot, "system1", epoch)
    assert len(engine._policy.processing.sessions) == nobodys


def opening(robot: str) -> SessionRequest:
    return SessionRequest(
        robot=robot, component="system1", action_names=tiny.NAMES, cameras=tiny.CAMERAS, state_size=tiny.STATE_SIZE
    )


def observed(template: InferenceRequest, robot: str, epoch: int) -> ObservationRequest:
    images = tuple(
        EncodedImage(camera=camera, format="rgb8", data=image.tobytes(), height_px=image.shape[0], width_px=image.shape[1])
        for camera, image in template.images.items()
        if isinstance(image, np.ndarray)
    )
    identity = RequestId(robot=robot, component="system1", session_epoch=epoch, episode=1, sequence=1)
    return ObservationRequest(id=identity, stamp_ns=0, instruction="push", state=template.state, images=images)


def test_a_checkpoint_that_remembers_nothing_has_one_pipeline_for_all(engines: dict[str, LeRobotEngine]) -> None:
    for kind in ("act", "smolvla", "pi0", "pi05", "diffusion"):
        processing = engines[kind]._policy.processing
        rows = zip(ROBOTS, requests_for(engines[kind]._policy), strict=True)
        requests = [replace(request, id=replace(request.id, robot=robot)) for robot, request in rows]
        engines[kind].infer(requests[: engines[kind].max_batch_size])
        assert len(processing.sessions) == 0 and len(processing._runs) == 1, kind
