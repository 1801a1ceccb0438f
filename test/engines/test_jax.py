"""The `jax` engine with a tiny random flow policy, against NumPy in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from ros2_rfm_serving.engines.flow.guidance import guidance_weight, prefix_weights
from ros2_rfm_serving.engines.flow.sampling import noise_of
from ros2_rfm_serving.engines.jax_policy import JaxEngine, Observation
from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.errors import ConfigurationError, ModelError, RfmError
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.types import Conditioning, Guidance, InferenceRequest, ModelContract, OutputKind, PrefixSchedule

LENGTH, ACTIONS, STATE, WORDS, HIDDEN, STEPS = 8, 3, 4, 5, 16, 6
CONTRACT = ModelContract(
    model="",
    model_hash="",
    output=OutputKind.ACTION_CHUNK,
    action_names=("x", "y", "z"),
    cameras=("front",),
    state_size=STATE,
    chunk_length=LENGTH,
    max_inference_delay_steps=3,
)
CLOSE = 1e-5


class Tiny:
    """Steps of a chunk see each other; `np` or `jnp` does the arithmetic."""

    contract, image_size_px = CONTRACT, 6

    def __init__(self, numpy: Any = jnp, dtype: Any = np.float32) -> None:
        rng, self.np = np.random.default_rng(0), numpy
        shapes = {"state": (STATE, HIDDEN), "word": (26, HIDDEN), "pixel": (3, HIDDEN), "x": (ACTIONS, HIDDEN), "time": (1, HIDDEN)}
        shapes |= {"mix": (LENGTH, LENGTH), "out": (HIDDEN, ACTIONS)}
        self.weights = {k: (rng.standard_normal(s) * s[0] ** -0.5).astype(np.float32).astype(dtype) for k, s in shapes.items()}

    def tokens(self, instructions: Sequence[str]) -> Any:
        return np.array([[ord(c) % 26 for c in text.ljust(WORDS)[:WORDS]] for text in instructions])

    def perceive(self, weights: Any, observation: Observation) -> Any:
        words = weights["word"][observation.tokens].mean(axis=1)
        pixels = observation.images.mean(axis=(1, 2, 3)) / 255.0
        return {"seen": self.np.tanh(observation.state @ weights["state"] + words + pixels @ weights["pixel"])}

    def velocity(self, weights: Any, x: Any, time: Any, context: Any) -> Any:
        hidden = x @ weights["x"] + time[..., None] @ weights["time"] + context["seen"][:, None]
        return self.np.tanh(weights["mix"] @ self.np.tanh(hidden)) @ weights["out"]

    def denormalize(self, weights: Any, actions: Any) -> Any:
        return actions * 2.0 + 0.5


def policy() -> Tiny:
    return Tiny()


class Leaky(Tiny):
    """Rows see each other."""

    def velocity(self, weights: Any, x: Any, time: Any, context: Any) -> Any:
        return super().velocity(weights, x - x.mean(axis=0), time, context)


def leaky() -> Leaky:
    return Leaky()


def built(function: str = "policy", **options: Any) -> JaxEngine:
    settings = {"policy": f"test.engines.test_jax:{function}", "num_steps": STEPS, "batch_sizes": (1, 4), **options}
    entry = CatalogueEntry(engine="jax", options=settings)
    profile = Profile({})
    spec = EngineSpec(model="tiny", entry=entry, models_folder=Path(), profile=profile, gpu_type="cpu", wait=lambda _: None)
    engine = build_engine(spec)
    assert isinstance(engine, JaxEngine)
    return engine


@pytest.fixture(scope="module")
def engine() -> JaxEngine:
    engine = built()
    engine.warm_up()
    return engine


def request(i: int, **changes: Any) -> InferenceRequest:
    rng, blank = np.random.default_rng(i), warmup_request(CONTRACT, (6, 6))
    return replace(
        blank,
        id=replace(blank.id, robot=f"arm{i}"),
        instruction=("push", "open the drawer", "pick")[i % 3],
        state=rng.standard_normal(STATE, np.float32),
        images={"front": rng.integers(0, 256, (6, 6, 3), np.uint8)},
        **changes,
    )


def continued(i: int, delay: int, way: Conditioning, **guidance: Any) -> InferenceRequest:
    prefix = np.random.default_rng(50 + i).standard_normal((6, ACTIONS), np.float32)
    return request(
        i,
        inference_delay_steps=delay,
        prefix_model=prefix,
        conditioning=way,
        guidance=Guidance(execution_horizon=5, **guidance),
    )


def reference(asked: InferenceRequest, engine: JaxEngine) -> Any:
    """[T, A] in float64: one row, one step after the other, the Jacobian by differences."""
    exact = Tiny(np, np.float64)
    images = np.stack([asked.images["front"]])[None]
    observation = Observation(asked.state[None].astype(np.float64), images, exact.tokens([asked.instruction]))
    context = exact.perceive(exact.weights, observation)
    x = noise_of(asked, engine.contract, engine._config).astype(np.float64)
    delay, prefix = asked.inference_delay_steps, asked.prefix_model.astype(np.float64)
    fixed = delay if asked.conditioning is Conditioning.PREFIX else 0
    for step in range(STEPS):
        tau = step / STEPS
        x[:fixed] = prefix[:fixed]
        time = np.full((1, LENGTH), 1.0 - tau)
        time[:, :fixed] = 0.0

        def velocity(x: Any, time: Any = time) -> Any:
            return exact.velocity(exact.weights, x[None], time, context)[0]

        v = velocity(x)
        if asked.conditioning is Conditioning.GUIDED:
            v = v - _pull(asked, velocity, x, tau)
        x = x - v / STEPS
    x[:fixed] = prefix[:fixed]
    return x


def _pull(asked: InferenceRequest, velocity: Any, x: Any, tau: float) -> Any:
    guidance = asked.guidance
    target = np.concatenate([asked.prefix_model, np.repeat(asked.prefix_model[-1:], LENGTH - len(asked.prefix_model), axis=0)])
    start, end = np.array([asked.inference_delay_steps]), np.array([guidance.execution_horizon])
    error = (target - (x - (1 - tau) * velocity(x))) * prefix_weights(start, end, LENGTH, [guidance.schedule])[0][:, None]
    if guidance.true_jacobian:
        small, flat = 1e-6, np.eye(x.size)
        columns = [(velocity(x + small * e.reshape(x.shape)) - velocity(x - small * e.reshape(x.shape))).ravel() for e in flat]
        jacobian = flat - (1 - tau) * np.stack(columns, axis=1) / (2 * small)
        error = (jacobian.T @ error.ravel()).reshape(x.shape)
    return guidance_weight(tau, np.array(guidance.max_weight)) * error


MIXED = (
    request(0),
    continued(1, 2, Conditioning.PREFIX),
    continued(2, 1, Conditioning.GUIDED),
    continued(3, 3, Conditioning.GUIDED, schedule=PrefixSchedule.EXP),
)
JACOBIAN = continued(4, 2, Conditioning.GUIDED, true_jacobian=True)


def test_a_batch_of_mixed_rows_is_the_reference_row_by_row(engine: JaxEngine) -> None:
    for asked, reply in zip(MIXED, engine.infer(MIXED), strict=True):
        exact = reference(asked, engine)
        assert np.abs(reply.chunk_model - exact).max() < CLOSE
        assert np.abs(reply.chunk_robot - (exact * 2.0 + 0.5)).max() < 3 * CLOSE
        assert reply.updates.shape == (STEPS, LENGTH, ACTIONS)


def test_guidance_through_the_models_jacobian(engine: JaxEngine) -> None:
    replies = engine.infer([JACOBIAN, MIXED[2]])
    for asked, reply in zip((JACOBIAN, MIXED[2]), replies, strict=True):
        assert np.abs(reply.chunk_model - reference(asked, engine)).max() < 1e-4
    plain = replace(JACOBIAN, guidance=replace(JACOBIAN.guidance, true_jacobian=False))
    assert np.abs(replies[0].chunk_model - engine.infer([plain])[0].chunk_model).max() > 1e-2


def test_a_jacobian_is_compiled_at_warm_up_where_it_is_allowed_and_nobody_can_ask_for_it_elsewhere(engine: JaxEngine) -> None:
    """A program takes seconds to compile, for all robots of the server."""
    assert not engine.contract.true_jacobian
    allowed = built(true_jacobian=True, batch_sizes=(1, 2))
    allowed.warm_up()
    compiled = allowed._run._cache_size()
    allowed.infer([JACOBIAN])
    allowed.infer([JACOBIAN, MIXED[2]])
    assert allowed.contract.true_jacobian and allowed._run._cache_size() == compiled == 4


def test_the_hash_covers_what_the_options_change(engine: JaxEngine) -> None:
    hashes = [built(**changed).contract.model_hash for changed in ({}, {"seed": 3}, {"num_steps": STEPS + 1}, {"noise_scale": 0.5})]
    assert hashes[0] == hashes[1] == engine.contract.model_hash and len(set(hashes)) == 3


def test_a_prefix_is_kept_and_what_follows_heeds_it(engine: JaxEngine) -> None:
    free, asked = engine.infer([request(1)])[0], MIXED[1]
    reply = engine.infer([asked])[0]
    assert np.array_equal(reply.chunk_model[:2], asked.prefix_model[:2])
    assert not reply.updates[:, :2].any()
    assert np.abs(reply.chunk_model[2:] - free.chunk_model[2:]).max() > 1e-3


def test_rows_alone_and_in_a_batch_are_equal(engine: JaxEngine) -> None:
    for asked, reply in zip(MIXED[:3], engine.infer(MIXED[:3]), strict=True):
        assert np.abs(reply.chunk_model - engine.infer([asked])[0].chunk_model).max() < CLOSE


def test_updates_lead_from_the_noise_to_the_chunk(engine: JaxEngine) -> None:
    reply = engine.infer([MIXED[0]])[0]
    noise = noise_of(MIXED[0], engine.contract, engine._config)
    assert np.abs(noise + reply.updates.sum(axis=0) - reply.chunk_model).max() < CLOSE


def test_the_same_request_gives_the_same_bits(engine: JaxEngine) -> None:
    assert np.array_equal(engine.infer([MIXED[2]])[0].chunk_robot, engine.infer([MIXED[2]])[0].chunk_robot)


def test_a_program_per_batch_size_and_no_more(engine: JaxEngine) -> None:
    before = engine._run._cache_size()
    for rows in (1, 2, 3, 4):
        engine.infer([request(i) for i in range(rows)])
    assert engine._run._cache_size() == before


def test_parity(engine: JaxEngine) -> None:
    checks = engine.check_parity()
    assert [check.block for check in checks] == ["full loop, in a batch", "full loop, guided"]
    assert all(check.error < CLOSE and check.passes for check in checks), checks


def test_parity_fails_where_rows_see_each_other() -> None:
    assert not any(check.passes for check in built("leaky").check_parity())


def test_the_contract(engine: JaxEngine) -> None:
    contract = engine.contract
    assert contract.model == "tiny" and len(contract.model_hash) == 64 and engine.max_batch_size == 4
    assert contract.conditionings == (Conditioning.NONE, Conditioning.PREFIX, Conditioning.GUIDED)
    assert built().contract.model_hash == contract.model_hash != built("leaky").contract.model_hash


def test_robot_space_is_the_policys(engine: JaxEngine) -> None:
    chunk = np.random.default_rng(5).standard_normal((2, LENGTH, ACTIONS), np.float32)
    assert np.abs(engine._bridge.denormalize(chunk) - (chunk * 2.0 + 0.5)).max() < CLOSE


def test_a_delay_beyond_training_is_refused(engine: JaxEngine) -> None:
    with pytest.raises(ModelError, match="prefixes of up to 3 steps, not 4"):
        engine.infer([continued(1, 4, Conditioning.PREFIX)])


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"policy": "no.such:thing"}, ModelError, "options.policy: 'no.such:thing' cannot be imported"),
        ({"policy": "test.engines.test_jax:nothing"}, ModelError, "options.policy"),
        ({"policy": "nothing"}, ConfigurationError, r"models.tiny.options.policy"),
        ({"batch_sizes": (4, 2)}, ConfigurationError, "models.tiny.options.batch_sizes.*rising"),
        ({"device": "gpu"}, ModelError, "options.device: JAX finds no 'gpu' here"),
        ({"steps": 3}, ConfigurationError, "models.tiny.options.steps: unknown key"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], error: type[RfmError], said: str) -> None:
    with pytest.raises(error, match=said):
        built(**options)
