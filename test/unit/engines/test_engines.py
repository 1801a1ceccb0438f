"""The shipped bundles, the sampling loop and the emulated engine. PyTorch on the CPU."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lab.training.judge_training import train_judge
from lab.training.optimizing import TrainingConfig
from lab.training.policy_training import train_policy
from ros2_rfm_serving.engines.base import Predicts, SamplingConfig
from ros2_rfm_serving.engines.embedded import bundle, instructions
from ros2_rfm_serving.engines.embedded.engine import FlowPolicy, load_embedded
from ros2_rfm_serving.engines.embedded.judge import Judge
from ros2_rfm_serving.engines.embedded.networks import FlowPolicyConfig, FlowPolicyNetwork, JudgeConfig, JudgeNetwork
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.flow.engine import FlowEngine
from ros2_rfm_serving.engines.flow.sampling import sample
from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.engines.weights_header import MOST_BYTES
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory import Catalogue, CatalogueEntry
from ros2_rfm_serving.factory.catalogue import FootprintEntry, ServiceEntry
from ros2_rfm_serving.operate import bundles
from ros2_rfm_serving.profiles import Profile, load_profiles
from ros2_rfm_serving.types import Conditioning, InferenceRequest
from test.unit.fakes import shipped_bundles

SMALL = FlowPolicyConfig(
    state_size=6,
    state_columns=(0, 1, 2, 3, 4, 5),
    relative_pairs=((0, 3),),
    num_actions=2,
    action_names=("x", "y"),
    cameras=("front",),
    vocabulary=("<pad>", "<unknown>", "go"),
    chunk_length=8,
    max_inference_delay_steps=4,
    image_size_px=32,
    width=16,
    heads=2,
)


def small_policy(seed: int = 0, trace: bool = False) -> FlowPolicy:
    torch.manual_seed(seed)
    network = FlowPolicyNetwork(SMALL)
    for parameter in network.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter)).requires_grad_(False)
    return FlowPolicy("small", network.eval(), "hash", BundleOptions(device="cpu", trace=trace))


def request(i: int, delay: int = 0, prefix: int = 0, conditioning: Conditioning = Conditioning.PREFIX) -> InferenceRequest:
    rng = np.random.default_rng(i)
    blank = warmup_request(small_policy().contract, (32, 32))
    return replace(
        blank,
        id=replace(blank.id, robot=f"r{i}", sequence=i),
        instruction="go",
        state=rng.normal(size=6).astype(np.float32),
        images={"front": rng.integers(0, 255, (32, 32, 3), np.uint8)},
        inference_delay_steps=delay,
        prefix_model=rng.normal(size=(prefix, 2)).astype(np.float32),
        conditioning=conditioning,
    )


def test_a_batched_row_equals_the_row_alone_whatever_its_neighbours_delays() -> None:
    policy = small_policy()
    requests = [request(0), request(1, delay=2, prefix=2), request(2, delay=4, prefix=6), request(3, delay=1, prefix=0)]
    together = sample(policy, requests, SamplingConfig()).chunks
    for row, alone in zip(together, requests, strict=True):
        np.testing.assert_allclose(row, sample(policy, [alone], SamplingConfig()).chunks[0], atol=1e-5)


def test_the_prefix_comes_back_untouched_and_the_rest_depends_on_it() -> None:
    policy = small_policy()
    plain, conditioned = request(1), request(1, delay=3, prefix=3)
    chunk = sample(policy, [conditioned], SamplingConfig()).chunks[0]
    np.testing.assert_array_equal(chunk[:3], conditioned.prefix_model)
    assert np.abs(chunk[3:] - sample(policy, [plain], SamplingConfig()).chunks[0][3:]).max() > 1e-4


def test_a_delay_beyond_what_was_trained_is_refused() -> None:
    with pytest.raises(ModelError, match="up to 4 steps, not 5"):
        sample(small_policy(), [request(1, delay=5, prefix=8)], SamplingConfig())


def test_the_same_request_gives_the_same_chunk_bit_by_bit() -> None:
    policy = small_policy()
    first, again = (sample(policy, [request(1)], SamplingConfig(seed=3)).chunks for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - sample(policy, [request(1)], SamplingConfig(seed=4)).chunks).max() > 1e-3


def test_images_and_instruction_reach_the_policy() -> None:
    policy = small_policy()
    here = sample(policy, [request(1)], SamplingConfig()).chunks
    dark = replace(request(1), images={"front": np.zeros((32, 32, 3), np.uint8)})
    assert np.abs(here - sample(policy, [dark], SamplingConfig()).chunks).max() > 1e-5
    assert np.abs(here - sample(policy, [replace(request(1), instruction="")], SamplingConfig()).chunks).max() > 1e-5


def test_images_of_any_size_are_resized() -> None:
    large = replace(request(1), images={"front": np.zeros((224, 160, 3), np.uint8)})
    assert np.isfinite(sample(small_policy(), [large], SamplingConfig()).chunks).all()


def test_a_model_that_gives_nan_for_all_is_an_error() -> None:
    policy = small_policy()
    policy._network.action_out.bias.data[:] = float("nan")
    with pytest.raises(ModelError, match="not finite"):
        FlowEngine(policy).infer([request(1)])


def test_unknown_words_are_left_out() -> None:
    assert instructions.encode(["please go NOW"], {"go": 2}, 4).tolist() == [[2, 0, 0, 0]]


@pytest.mark.parametrize("name", shipped_bundles())
def test_the_shipped_bundles_load_and_match_their_cards(repository: Path, name: str) -> None:
    folder = repository / "models" / name
    engine = load_embedded(name, folder)
    assert engine.contract.model_hash in (folder / "MODEL_CARD.md").read_text()
    engine.warm_up()
    assert sum(file.stat().st_size for file in folder.iterdir()) < 8 << 20


def test_the_shipped_policy_answers_in_robot_space(repository: Path) -> None:
    engine = load_embedded("m", repository / "models" / "metaworld_flow")
    assert engine.contract.action_names == ("delta_x", "delta_y", "delta_z", "gripper")
    assert engine.contract.conditionings == tuple(Conditioning)
    (reply,) = engine.infer([warmup_request(engine.contract)])
    assert reply.chunk_robot.shape == (24, 4) and np.abs(reply.chunk_robot).max() < 3


def test_a_judge_says_one_of_its_words() -> None:
    judge = Judge("j", JudgeNetwork(JudgeConfig(cameras=("front",), vocabulary=("<pad>", "<unknown>", "go"))).eval(), "hash")
    image = np.zeros((96, 96, 3), np.uint8)
    (reply,) = judge.infer([replace(request(1), images={"front": image})])
    assert reply.verdict in ("ongoing", "done", "failed") and 0 <= reply.score <= 1
    assert judge.contract.conditionings == (Conditioning.NONE,)


def spoil_missing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def spoil_truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def spoil_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def spoil_shape(folder: Path) -> None:
    file = folder / "config.json"
    content = json.loads(file.read_text())
    content["network"]["chunk_length"] += 1
    file.write_text(json.dumps(content))


def spoil_header(folder: Path) -> None:
    """As long as 40,000 tensors' would be; the library reads it: blanks are allowed there."""
    file = folder / "model.safetensors"
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    longer = content[8 : 8 + size].ljust(MOST_BYTES + 8)
    file.write_bytes(len(longer).to_bytes(8, "little") + longer + content[8 + size :])


@pytest.mark.parametrize("spoil", [spoil_missing, spoil_truncated, spoil_header, spoil_config, spoil_shape])
def test_a_damaged_bundle_is_refused_by_name(repository: Path, tmp_path: Path, spoil) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "bundle"
    shutil.copytree(repository / "models" / "metaworld_flow", folder)
    spoil(folder)
    with pytest.raises(ModelError, match="bundle"):
        bundle.load(folder)


def test_a_header_longer_than_any_models_is_refused_before_it_is_read(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(repository / "models" / "metaworld_flow", folder)
    spoil_header(folder)
    monkeypatch.setattr(bundle, "load_file", lambda file: pytest.fail("it was read"))
    monkeypatch.setattr("safetensors.safe_open", lambda file, framework: pytest.fail("it was read"))
    for read in (bundle.read_weights, bundles.described):
        with pytest.raises(ModelError, match=rf"model\.safetensors: its header says that it has {MOST_BYTES + 8} bytes"):
            read(folder)


@pytest.mark.parametrize(
    ("options", "is_another"),
    [
        ({"num_steps": 3}, True),
        ({"noise_scale": 0.5}, True),
        ({"dtype": "bfloat16"}, True),
        ({"dtype": "int8"}, True),
        ({"dtype": "int4"}, True),
        ({"seed": 7, "batch_sizes": (1, 2), "true_jacobian": True}, False),
        ({"dtype": "float32"}, False),
    ],
)
def test_the_hash_is_of_the_bundle_and_of_what_options_change_in_its_answers(
    repository: Path, options: dict[str, Any], is_another: bool
) -> None:
    folder = repository / "models" / "metaworld_flow"
    as_saved = load_embedded("m", folder)
    other = load_embedded("m", folder, BundleOptions(device="cpu", **options))
    assert (other.contract.model_hash != as_saved.contract.model_hash) is is_another
    assert len(other.contract.model_hash) == 64
    same = json.loads((folder / "config.json").read_text())["network"]["num_steps"]
    said = load_embedded("m", folder, BundleOptions(device="cpu", num_steps=same))
    assert said.contract.model_hash == as_saved.contract.model_hash, "what it says anyway"


def test_an_emulated_engine_takes_its_profiles_time_and_says_so(repository: Path) -> None:
    waited: list[float] = []
    profiles = repository / "config" / "profiles"
    spec = EngineSpec(
        model="emulated/arm-policy",
        entry=Catalogue.load(profiles / "models.yaml")["emulated/arm-policy"],
        models_folder=repository,
        profile=load_profiles(profiles),
        gpu_type="EMULATED",
        wait=waited.append,
    )
    engine = build_engine(spec)
    replies = engine.infer([warmup_request(engine.contract)] * 3)
    assert waited == [pytest.approx(0.035)] and len(replies) == 3
    assert engine.contract.emulated and "emulated" in engine.contract.model and engine.contract.model_hash == ""
    assert engine.contract.conditionings == tuple(Conditioning)


def test_an_emulated_text_model_serves_several_at_once_each_the_slower_the_more_they_are() -> None:
    """As in virtual time: `ProcessorSharing`. Here a second request comes after the first eighth of the first one's work."""
    service = ServiceEntry(batching="continuous", base_ms=100, per_request_ms=50, max_concurrent=3, jitter=0)
    footprint = FootprintEntry(memory_gb=1, load_s=1, source="said", service=service, derivation="said")
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 1:
            engine.infer([warmup_request(engine.contract)])

    spec = EngineSpec(
        model="judge",
        entry=CatalogueEntry(engine="emulated", output="judgement", gpus={"GPU": footprint}),
        models_folder=Path(),
        profile=Profile({}),
        gpu_type="GPU",
        wait=wait,
    )
    engine = build_engine(spec)
    assert engine.max_concurrent == 3
    engine.infer([warmup_request(engine.contract)])
    assert waited == pytest.approx([0.15 / 8] + [0.2 / 8] * 8 + [0.15 / 8] * 7)


def test_unknown_models_and_engines_are_named(repository: Path) -> None:
    profiles = repository / "config" / "profiles"
    spec = EngineSpec(
        model="m",
        entry=CatalogueEntry(engine="bundle"),
        models_folder=repository,
        profile=load_profiles(profiles),
        gpu_type="CPU",
        wait=lambda s: None,
    )
    with pytest.raises(ModelError, match="did you mean `rfm/metaworld-flow`"):
        _ = Catalogue.load(profiles / "models.yaml")["rfm/metaworld-flo"]
    with pytest.raises(ModelError, match="no engine is named 'magic'"):
        build_engine(replace(spec, entry=CatalogueEntry(engine="magic")))


class Data:
    """Two tiny episodes whose action is a linear function of the state."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        n = 400
        self.state = rng.normal(size=(n, 6)).astype(np.float32)
        self.state[:, 0] = np.sin(np.arange(n) / 9)
        self.action = np.stack([self.state[:, 0], -self.state[:, 0]], 1).astype(np.float32)
        self.executed, self.disturbed = self.action, np.zeros(n, bool)
        self.episode = (np.arange(n) // 20).astype(np.int32)
        self.task = np.zeros(n, np.int32)
        self.frame = (np.arange(n) // 4).astype(np.int32)
        self.images = rng.integers(0, 60, (n // 4, 1, 32, 32, 3), np.uint8)
        self.verdict = (np.arange(n // 4) % 2).astype(np.int32)
        self.images[self.verdict == 1, :, :16] += 150
        self.frame_task = np.zeros(n // 4, np.int32)
        self.frame_episode = (np.arange(n // 4) // 5).astype(np.int32)


def test_training_learns_and_writes_a_bundle_that_loads(tmp_path: Path) -> None:
    losses: list[float] = []
    training = TrainingConfig(steps=60, batch_size=16, warm_up_steps=10, log_every=15, learning_rate=3e-3)
    network = train_policy(SMALL, Data(), [["go"]], training, lambda row: losses.append(row["loss"]))
    assert losses[-1] < 0.8 * losses[0]
    written = bundle.save(tmp_path / "bundle", network)
    assert bundle.load(tmp_path / "bundle")[1] == written


def test_a_bundle_with_an_unknown_head_is_refused(repository: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(repository / "models" / "metaworld_flow", tmp_path / "bundle")
    config = json.loads((folder / "config.json").read_text())
    config["network"]["predicts"] = "future"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="'future' is not a valid Predicts"):
        bundle.load(folder)


@pytest.mark.parametrize("predicts", [Predicts.NOISE, Predicts.CLEAN, Predicts.CHUNK])
def test_diffusion_and_regression_are_trained_for_what_our_loop_asks(predicts: Predicts, tmp_path: Path) -> None:
    losses: list[float] = []
    training = TrainingConfig(steps=60, batch_size=16, warm_up_steps=10, log_every=15, learning_rate=3e-3)
    config = replace(SMALL, predicts=predicts.value, clean_limit=3.0)
    bundle.save(tmp_path, train_policy(config, Data(), [["go"]], training, lambda row: losses.append(row["loss"])))
    assert losses[-1] < 0.8 * losses[0]
    engine = load_embedded("m", tmp_path)
    assert engine.contract.conditionings == (Conditioning.NONE, Conditioning.PREFIX)[: 1 + (predicts is not Predicts.CHUNK)]
    assert len(engine.infer([request(1)])[0].updates) == (0 if predicts is Predicts.CHUNK else config.num_steps)


def test_the_judge_learns_what_pictures_show() -> None:
    last: dict[str, float] = {}
    config = JudgeConfig(cameras=("front",), vocabulary=SMALL.vocabulary, image_size_px=32)
    training = TrainingConfig(steps=80, batch_size=16, warm_up_steps=5, log_every=40, learning_rate=3e-3, ema_decay=0.9)
    train_judge(config, Data(), [["go"]], training, last.update)
    assert last["recall_ongoing"] > 0.9 and last["recall_done"] > 0.9
