"""The `lerobot` engine against LeRobot itself, on small random policies; pi0 and pi0.5 where their transformers is installed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lerobot.configs.types import RTCAttentionSchedule
from lerobot.policies.rtc.configuration_rtc import RTCConfig
from lerobot.processor import ObservationProcessorStep, PolicyActionProcessorStep, ProcessorStepRegistry

from ros2_rfm_serving.engines.flow.sampling import noise_of, sample
from ros2_rfm_serving.engines.lerobot.engine import LeRobotEngine
from ros2_rfm_serving.engines.lerobot.parity import own_answer, requests_for
from ros2_rfm_serving.engines.lerobot.policies import Pi0, SmolVla
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import Conditioning, Guidance, InferenceRequest, PrefixSchedule, SessionRequest, SessionSharing
from test.engines import tiny_lerobot as tiny
from test.engines.lerobot_rig import CLOSE, KINDS, SPLIT, built, close

# --- parity ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_block_is_lerobots(engines: dict[str, LeRobotEngine], kind: str) -> None:
    checks = engines[kind].check_parity()
    assert len(checks) == (4 if kind in SPLIT else 2)
    assert all(check.passes for check in checks), checks
    assert all(check.error <= CLOSE for check in checks), checks


@pytest.mark.parametrize("kind", SPLIT)
def test_the_gate_names_the_block_that_is_off(
    engines: dict[str, LeRobotEngine], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = SmolVla if kind == "smolvla" else Pi0
    velocity = split.velocity
    monkeypatch.setattr(split, "velocity", lambda self, x, time, observed: velocity(self, x, time * 0.9, observed))
    failed = [check.block for check in engines[kind].check_parity() if not check.passes]
    assert failed == ["one solver step", "full loop, in a batch", "robot space"]


def test_the_gate_sees_wrong_statistics(engines: dict[str, LeRobotEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engines["act"]
    monkeypatch.setattr(engine._policy.processing, "to_robot", lambda chunks: chunks.numpy())
    assert [check.block for check in engine.check_parity() if not check.passes] == ["robot space"]


@pytest.mark.parametrize("kind", SPLIT)
@pytest.mark.parametrize("schedule", [PrefixSchedule.LINEAR, PrefixSchedule.EXP])
def test_rows_with_prefixes_of_their_own_are_lerobots_rtc(
    engines: dict[str, LeRobotEngine], kind: str, schedule: PrefixSchedule
) -> None:
    """One batch of ours, with another delay, prefix and horizon in each row, against LeRobot's guidance, robot by robot."""
    model = engines[kind]._policy
    rng = np.random.default_rng(3)
    rows = [(0, 8, 5), (2, 10, 8), (5, 12, 10)]  # delay, prefix, horizon
    requests = [
        replace(
            request,
            inference_delay_steps=delay,
            prefix_model=rng.standard_normal((length, tiny.NUM_ACTIONS), np.float32),
            conditioning=Conditioning.GUIDED,
            guidance=Guidance(schedule=schedule, execution_horizon=horizon, zero_padded=True),
        )
        for request, (delay, length, horizon) in zip(requests_for(model), rows, strict=True)
    ]
    noise = np.stack([noise_of(request, model.contract, model.sampling) for request in requests])
    policy = model.checkpoint.policy
    policy.config.rtc_config = RTCConfig(enabled=True, prefix_attention_schedule=RTCAttentionSchedule(schedule.name))
    policy.init_rtc_processor()
    try:
        for i, request in enumerate(requests):
            delay, _, horizon = rows[i]
            theirs = own_answer(
                model,
                request,
                noise[i],
                inference_delay=delay,
                prev_chunk_left_over=torch.from_numpy(request.prefix_model),
                execution_horizon=horizon,
            )
            ours = sample(model, requests, model.sampling, noise).chunks[i]
            assert close(ours, theirs.chunk)
    finally:
        policy.config.rtc_config = None
        policy.init_rtc_processor()
        policy.model.rtc_processor = None
    free = sample(model, [replace(r, conditioning=Conditioning.NONE) for r in requests], model.sampling, noise).chunks
    assert not close(sample(model, requests, model.sampling, noise).chunks, free)


@pytest.mark.parametrize("kind", SPLIT)
def test_guidance_through_the_models_jacobian(engines: dict[str, LeRobotEngine], kind: str) -> None:
    """Against central differences of the policy's velocity, along one direction, at the first step that is not all noise."""
    model = engines[kind]._policy
    context = model.perceive(requests_for(model)[:1])
    rng = np.random.default_rng(6)
    x, direction = (torch.from_numpy(rng.standard_normal((1, tiny.CHUNK, 7), np.float32)) for _ in range(2))
    time = torch.full((1, tiny.CHUNK), 0.8)
    with torch.enable_grad():
        probe = x.clone().requires_grad_()
        (product,) = torch.autograd.grad(model.velocity(probe, time, context), probe, direction)
    small = 1e-2
    with torch.no_grad():
        ahead, behind = (model.velocity(x + sign * small * product, time, context) for sign in (1, -1))
    slope = float(((ahead - behind) * direction).sum() / (2 * small))
    assert slope == pytest.approx(float((product**2).sum()), rel=2e-2)


@pytest.mark.parametrize("kind", [*SPLIT, "act"])
def test_a_row_in_a_batch_is_the_row_alone(engines: dict[str, LeRobotEngine], kind: str) -> None:
    engine = engines[kind]
    requests = requests_for(engine._policy)
    together = engine.infer(requests)
    for request, reply in zip(requests, together, strict=True):
        assert close(reply.chunk_robot, engine.infer([request])[0].chunk_robot)
    assert not close(together[0].chunk_robot, together[1].chunk_robot)


@pytest.mark.parametrize("kind", SPLIT)
def test_cameras_of_another_size_are_resized_as_the_policy_would_and_share_a_batch(
    engines: dict[str, LeRobotEngine], kind: str
) -> None:
    engine, rng = engines[kind], np.random.default_rng(4)
    model = engine._policy
    small, other, _ = requests_for(model)
    large = replace(other, images={c: rng.integers(0, 256, (120, 100, 3), np.uint8) for c in tiny.CAMERAS})
    noise = np.stack([noise_of(request, model.contract, model.sampling) for request in (small, large)])
    together = sample(model, [small, large], model.sampling, noise).chunks
    for i, request in enumerate((small, large)):
        assert close(together[i], own_answer(model, request, noise[i]).chunk)


def test_a_policy_of_one_size_gets_images_of_that_size(engines: dict[str, LeRobotEngine]) -> None:
    engine = engines["act"]
    small, other, _ = requests_for(engine._policy)
    large = replace(other, images={c: np.full((96, 128, 3), 7, np.uint8) for c in tiny.CAMERAS})
    together = engine.infer([small, large])
    assert close(together[1].chunk_robot, engine.infer([large])[0].chunk_robot)


@pytest.mark.parametrize("kind", SPLIT)
def test_updates_lead_from_the_noise_to_the_chunk(engines: dict[str, LeRobotEngine], kind: str) -> None:
    engine = engines[kind]
    model = engine._policy
    request = requests_for(model)[0]
    reply = engine.infer([request])[0]
    assert reply.updates.shape == (5, tiny.CHUNK, tiny.NUM_ACTIONS)
    noise = noise_of(request, model.contract, model.sampling)[:, : tiny.NUM_ACTIONS]
    assert close(noise + reply.updates.sum(axis=0), reply.chunk_model)


# --- sessions --------------------------------------------------------------------------------------------------------------


@ProcessorStepRegistry.register("test_relative_to")
class RelativeTo(ObservationProcessorStep):
    """Keeps the state on the way in, as steps for relative actions do."""

    last: torch.Tensor | None = None

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        RelativeTo.last = observation["observation.state"][..., : tiny.NUM_ACTIONS].clone()
        return observation

    def transform_features(self, features: Any) -> Any:
        return features


@ProcessorStepRegistry.register("test_absolute")
class Absolute(PolicyActionProcessorStep):
    """Adds it on the way out."""

    def action(self, action: torch.Tensor) -> torch.Tensor:
        assert RelativeTo.last is not None
        state = RelativeTo.last.cpu()
        return action + (state[:, None] if action.ndim == 3 else state)

    def transform_features(self, features: Any) -> Any:
        return features


@pytest.fixture
def relative(tmp_path: Path) -> Iterator[LeRobotEngine]:
    """A checkpoint whose actions are relative to the state of the observation."""
    folder = tiny.save("smolvla", tmp_path)
    for file, step, place in (
        ("policy_preprocessor.json", "test_relative_to", 0),
        ("policy_postprocessor.json", "test_absolute", 9),
    ):
        saved = json.loads((folder / file).read_text())
        saved["steps"].insert(place, {"registry_name": step, "config": {}})
        for i, entry in enumerate(saved["steps"]):  # their statistics stay where they are
            assert "state_file" not in entry or (folder / entry["state_file"]).is_file(), i
        (folder / file).write_text(json.dumps(saved))
    yield built("smolvla", folder)


def test_relative_actions_of_two_robots_stay_apart(relative: LeRobotEngine, engines: dict[str, LeRobotEngine]) -> None:
    one, other, _ = requests_for(relative._policy)
    other = replace(other, state=one.state + 3.0)
    absolute = engines["smolvla"].infer([one, other])  # the same weights without such steps
    for i, reply in enumerate(relative.infer([one, other])):
        request = (one, other)[i]
        assert close(reply.chunk_robot, relative.infer([request])[0].chunk_robot)
        assert close(reply.chunk_robot, absolute[i].chunk_robot + request.state[: tiny.NUM_ACTIONS])


def test_a_prefix_of_relative_actions_is_expressed_anew_for_the_observation_of_now(relative: LeRobotEngine) -> None:
    """Remote-RTC §7: what was said of a state that has passed is the same motion seen from another one."""
    model = relative._policy
    before, other, _ = requests_for(model)
    then = relative.infer([before])[0]
    now = replace(
        before,
        id=replace(before.id, sequence=9),
        state=before.state + 2.0,
        prefix_model=then.chunk_model[2:],
        prefix_robot=then.chunk_robot[2:],
        inference_delay_steps=4,
        conditioning=Conditioning.GUIDED,
        guidance=Guidance(schedule=PrefixSchedule.ONES, execution_horizon=8, max_weight=100.0),
    )
    model.perceive([now, other])
    anchored, free = model.anchored([now, other])
    statistics = tiny._statistics()["action"]
    expected = (then.chunk_robot[2:] - now.state[: tiny.NUM_ACTIONS] - statistics["mean"].numpy()) / statistics["std"].numpy()
    assert close(anchored.prefix_model, expected) and not close(anchored.prefix_model, now.prefix_model)
    assert not len(free.prefix_model)

    def off(request: InferenceRequest) -> float:
        """How far the chunk's first rows are from what the robot executes meanwhile."""
        return float(np.abs(relative.infer([request, other])[0].chunk_robot[:4] - then.chunk_robot[2:6]).max())

    assert off(now) < 0.3 * off(replace(now, conditioning=Conditioning.NONE))
    as_it_was = replace(now, prefix_robot=now.prefix_robot + 2.0)  # the prefix in the model space of the state before
    assert off(now) < 0.6 * off(as_it_was)


def test_relative_actions_on_a_curved_way_are_not_guided(
    relative: LeRobotEngine, engines: dict[str, LeRobotEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows where in model space a prefix is then."""
    for engine in (relative, engines["smolvla"]):
        assert Conditioning.GUIDED in engine.contract.conditionings
    plain = Absolute.action
    monkeypatch.setattr(Absolute, "action", lambda self, action: plain(self, torch.tanh(action)))
    curved = LeRobotEngine(relative._policy)
    assert curved.contract.conditionings == (Conditioning.NONE,) and not curved.contract.true_jacobian


def test_a_policy_with_a_memory_forgets_between_episodes(engines: dict[str, LeRobotEngine]) -> None:
    engine = engines["diffusion"]
    first, second, _ = requests_for(engine._policy)
    engine.reset()
    fresh = engine.infer([second])[0].chunk_robot
    engine.infer([first])
    remembering = engine.infer([second])[0].chunk_robot
    assert not close(remembering, fresh)
    engine.reset()
    assert np.array_equal(engine.infer([second])[0].chunk_robot, fresh)


@pytest.mark.parametrize("kind", KINDS)
def test_served_to_as_many_sessions_as_its_kind_allows(engines: dict[str, LeRobotEngine], kind: str) -> None:
    engine = engines[kind]
    exclusive = kind == "diffusion"
    assert engine.contract.serving is (SessionSharing.EXCLUSIVE if exclusive else SessionSharing.SHARED)
    assert engine.max_batch_size == (1 if exclusive else 32)
    server = ModelServer(ServerConfig(name="gpu0", batch_size=2, max_sessions=4), engine)

    def opens(robot: str) -> bool:
        try:
            server.open_session(
                SessionRequest(
                    robot=robot, component="system1", action_names=tiny.NAMES, cameras=tiny.CAMERAS, state_size=tiny.STATE_SIZE
                )
            )
        except RfmError:
            return False
        return True

    assert [opens("a"), opens("b")] == [True, not exclusive]


def test_the_global_generator_is_left_alone(engines: dict[str, LeRobotEngine]) -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    engines["diffusion"].infer(requests_for(engines["diffusion"]._policy)[:1])
    assert torch.equal(torch.rand(1), expected)
