"""The `lerobot` engine against LeRobot itself, on small random policies; pi0 and pi0.5 where their transformers is installed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lerobot.configs.types import RTCAttentionSchedule
from lerobot.policies.rtc.configuration_rtc import RTCConfig
from lerobot.processor import ObservationProcessorStep, PolicyActionProcessorStep, ProcessorStepRegistry
from safetensors.torch import load_file, save_file

from ros2_rfm_serving.engines.lerobot import LeRobotEngine
from ros2_rfm_serving.engines.lerobot_parity import own_answer, requests_for
from ros2_rfm_serving.engines.lerobot_policies import Pi0, SmolVla, serving_of
from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.engines.sampling import noise_of, sample
from ros2_rfm_serving.errors import ConfigurationError, ModelError, RfmError
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import Conditioning, Guidance, InferenceRequest, PrefixSchedule, Serving, SessionRequest
from test.engines import tiny_lerobot as tiny

SPLIT = ("smolvla", "pi0", "pi05") if find_spec("transformers.models.siglip.check") else ("smolvla",)
KINDS = (*SPLIT, "act", "diffusion")
CLOSE = 1e-5


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: tiny.save(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


@pytest.fixture(scope="session")
def engines(checkpoints: dict[str, Path]) -> dict[str, LeRobotEngine]:
    return {kind: built(kind, folder) for kind, folder in checkpoints.items()}


def built(kind: str, folder: Path, **options: Any) -> LeRobotEngine:
    at_hand = {"action_names": tiny.NAMES, **({"tokenizer": str(folder / "vlm")} if (folder / "vlm").is_dir() else {})}
    entry = CatalogueEntry(engine="lerobot", options={"path": str(folder), **at_hand, **options})
    spec = EngineSpec(model=kind, entry=entry, models_folder=Path(), profile=Profile({}), gpu_type="cpu", wait=lambda _: None)
    with tiny.loading():
        engine = build_engine(spec)
    assert isinstance(engine, LeRobotEngine)
    return engine


def close(got: Any, reference: Any) -> bool:
    return bool(np.abs(got - reference).max() <= CLOSE * max(1.0, np.abs(reference).max()))


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


@pytest.mark.parametrize("kind", ["act", *SPLIT])
def test_model_space_and_robot_space_are_inverse(engines: dict[str, LeRobotEngine], kind: str) -> None:
    model = engines[kind]._policy
    chunk = np.random.default_rng(5).standard_normal((2, tiny.CHUNK, tiny.NUM_ACTIONS), np.float32)
    assert close(model.normalize(model.denormalize(chunk)), chunk)


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


def test_relative_actions_are_not_guided(relative: LeRobotEngine, engines: dict[str, LeRobotEngine]) -> None:
    """A prefix in model space would be relative to an observation that has passed."""
    assert relative.contract.conditionings == (Conditioning.NONE,)
    assert Conditioning.GUIDED in engines["smolvla"].contract.conditionings


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
    assert engine.contract.serving is (Serving.EXCLUSIVE if exclusive else Serving.SHARED)
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


# --- what is refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sac", "sarm", "reward_classifier"])
def test_a_policy_without_chunks_is_refused(kind: str) -> None:
    with pytest.raises(ModelError, match=f"{kind}.*no action chunks"):
        serving_of(kind)


def test_a_policy_that_nobody_has_looked_at_may_keep_state() -> None:
    assert serving_of("somebody_elses") is Serving.EXCLUSIVE


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"action_names": ()}, ModelError, r"does not name its 4 actions: give action_names, or dataset"),
        ({"action_names": ("x",)}, ModelError, r"1 action names \(x\) for a policy with 4 actions"),
        ({"path": "/no/such/folder"}, ModelError, r"options.path: /no/such/folder is no folder"),
        ({"dtype": "bfloat16"}, ModelError, r"'act' has no dtype"),
        ({"num_steps": 3}, ModelError, r"'act' has no num_inference_steps"),
        ({"dataset": "/nowhere"}, ModelError, r"options.dataset: /nowhere/meta/info.json"),
        ({"device": "cuda:99"}, ModelError, r"options.device is 'cuda:99', PyTorch sees \d+ GPUs"),
        ({"num_step": 3}, ConfigurationError, r"models.act.options.num_step: unknown key; did you mean `num_steps`"),
        ({"num_steps": 0}, ConfigurationError, r"models.act.options.num_steps"),
    ],
)
def test_wrong_options_are_named(checkpoints: dict[str, Path], options: dict[str, Any], error: type[RfmError], said: str) -> None:
    with pytest.raises(error, match=said):
        built("act", checkpoints["act"], **options)


@pytest.fixture
def damaged(checkpoints: dict[str, Path], tmp_path: Path) -> Path:
    for file in checkpoints["act"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_weights_must_be_complete(damaged: Path) -> None:
    weights = load_file(damaged / "model.safetensors")
    weights["model.action_heads.weight"] = weights.pop("model.action_head.weight")
    save_file(weights, damaged / "model.safetensors")
    with pytest.raises(
        ModelError, match=r"1 missing \(model.action_head.weight, ...\) and 1 unknown \(model.action_heads.weight, ...\)"
    ):
        built("act", damaged)


def test_weights_must_be_finite(damaged: Path) -> None:
    weights = load_file(damaged / "model.safetensors")
    weights["model.action_head.weight"][0] = float("nan")
    save_file(weights, damaged / "model.safetensors")
    with pytest.raises(ModelError, match="weights are not finite"):
        built("act", damaged)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "policy_preprocessor.json", "policy_postprocessor.json"])
def test_every_file_is_needed(damaged: Path, file: str) -> None:
    (damaged / file).unlink()
    with pytest.raises(ModelError, match=f"not a LeRobot checkpoint, {file} is missing"):
        built("act", damaged)


def test_a_checkpoint_cannot_have_code_called(damaged: Path) -> None:
    file = damaged / "policy_postprocessor.json"
    saved = json.loads(file.read_text())
    saved["steps"].append({"class": "subprocess.Popen", "config": {"args": ["touch", str(damaged / "called")]}})
    file.write_text(json.dumps(saved))
    with pytest.raises(ModelError, match=r"has a step 'subprocess\.Popen' that is not registered with LeRobot by name"):
        built("act", damaged)
    assert not (damaged / "called").exists()


def test_a_name_of_the_hub_is_fetched_at_its_revision(checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own client is replaced: no weights can be had in tests."""
    asked: list[tuple[str, str, list[str]]] = []

    def snapshot(name: str, *, revision: str, allow_patterns: list[str]) -> str:
        asked.append((name, revision, allow_patterns))
        return str(checkpoints["act"])

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    engine = built("act", checkpoints["act"], path="owner/towels", revision="0123abc")
    assert engine.contract.chunk_length == tiny.CHUNK
    assert asked == [("owner/towels", "0123abc", ["*.json", "*.safetensors"])]


# --- the contract ----------------------------------------------------------------------------------------------------------


def test_the_contract_is_the_checkpoints(engines: dict[str, LeRobotEngine]) -> None:
    contract = engines["smolvla"].contract
    assert (contract.action_names, contract.cameras) == (tiny.NAMES, tiny.CAMERAS)
    assert (contract.state_size, contract.chunk_length) == (tiny.STATE_SIZE, tiny.CHUNK)
    assert len({engine.contract.model_hash for engine in engines.values()}) == len(KINDS)


def test_the_hash_covers_weights_and_statistics(damaged: Path, engines: dict[str, LeRobotEngine]) -> None:
    same = built("act", damaged).contract.model_hash
    assert same == engines["act"].contract.model_hash
    statistics = next(damaged.glob("policy_postprocessor*.safetensors"))
    values = load_file(statistics)
    values["action.mean"] += 0.1
    save_file(values, statistics)
    assert built("act", damaged).contract.model_hash != same


def test_a_dataset_tells_names_and_rate(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    info = {"fps": 25, "features": {"action": {"names": {"motors": ["a", "b", "c", "d"]}}}}
    (tmp_path / "meta" / "info.json").write_text(json.dumps(info))
    contract = built("act", checkpoints["act"], action_names=(), dataset=str(tmp_path)).contract
    assert (contract.action_names, contract.control_rate_hz) == (("a", "b", "c", "d"), 25.0)


def test_robots_with_other_camera_names_are_renamed(checkpoints: dict[str, Path], engines: dict[str, LeRobotEngine]) -> None:
    renamed = built("act", checkpoints["act"], rename_map={"observation.images.left": "observation.images.front"})
    assert renamed.contract.cameras == ("left", "wrist")
    assert all(check.passes for check in renamed.check_parity())
    request = requests_for(engines["act"]._policy)[0]
    theirs = replace(request, images={"left": request.images["front"], "wrist": request.images["wrist"]})
    assert np.array_equal(renamed.infer([theirs])[0].chunk_robot, engines["act"].infer([request])[0].chunk_robot)


@pytest.mark.parametrize("kind", SPLIT)
def test_fewer_solver_steps_when_asked(checkpoints: dict[str, Path], kind: str) -> None:
    engine = built(kind, checkpoints[kind], num_steps=2)
    request: InferenceRequest = requests_for(engine._policy)[0]
    assert engine.infer([request])[0].updates.shape[0] == 2
    assert all(check.passes for check in engine.check_parity())
