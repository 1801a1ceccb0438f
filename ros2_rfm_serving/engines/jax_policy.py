"""Policies written as JAX functions, with our sampling loop around them as one compiled program.

`sampling.py` has the same loop for PyTorch and stays the reference: `check_parity` compares the two. B: rows of a batch; T: chunk
length; A: number of actions; K: denoising steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor

from ros2_rfm_serving.engines.base import Parity, SamplingConfig
from ros2_rfm_serving.engines.embedded.inputs import NetworkInputs
from ros2_rfm_serving.engines.flow import parity
from ros2_rfm_serving.engines.flow.engine import FlowEngine
from ros2_rfm_serving.engines.flow.guidance import guidance_weight, target_of
from ros2_rfm_serving.engines.flow.sampling import FlowSample, fixed_prefixes, noise_of, sample
from ros2_rfm_serving.engines.identity import model_hash
from ros2_rfm_serving.engines.registry import EngineSpec, checked_options
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import Array, Conditioning, Guidance, InferenceRequest, ModelContract


class Observation(NamedTuple):
    """Observations of a batch, as arrays."""

    state: Any
    """Robot states, [B, S] float32."""
    images: Any
    """Camera images, [B, cameras, size, size, 3] uint8, in the contract's order."""
    tokens: Any
    """Result of `JaxPolicy.tokens`."""


class JaxPolicy(Protocol):
    """Policy that the function in `options: {policy: package.module:function}` returns.

    All methods except `tokens` are traced: pure, of fixed shapes, independent row by row. Weights are an argument, so that a
    compiled program does not hold them as constants.
    """

    contract: ModelContract
    """Contract; the engine sets `model`, and `model_hash` if it is empty."""
    weights: Any
    """Arrays, nested in any way that JAX supports."""
    image_size_px: int

    def tokens(self, instructions: Sequence[str]) -> Any:
        """Return NumPy arrays with B rows, nested in any way, always of the same shapes."""

    def perceive(self, weights: Any, observation: Observation) -> Any:
        """Return the context that all denoising steps share, computed once per batch."""

    def velocity(self, weights: Any, x: Any, time: Any, context: Any) -> Any:
        """Return the velocity, [B, T, A]. x: [B, T, A] model space; time: [B, T], 1 = noise, 0 = clean."""

    def denormalize(self, weights: Any, actions: Any) -> Any:
        """Return actions, [..., A], in robot space from those in model space."""


class JaxOptions(BaseModel):
    """`options` of a catalogue entry with `engine: jax`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    policy: str = Field(pattern=r"^[\w.]+:\w+$")
    """Function that returns the policy, as package.module:function."""
    device: str = ""
    """`cpu`, `gpu` or `tpu`; if empty, the best device that JAX finds."""
    num_steps: int = Field(default=10, ge=1)
    noise_scale: float = Field(default=1.0, ge=0.0)
    seed: int = 0
    true_jacobian: bool = False
    """True if sessions may ask for guidance through the model's Jacobian, which takes 2 to 4 times as long for all robots of a
    batch."""
    batch_sizes: tuple[int, ...] = (1, 4, 16)
    """Batch sizes for which a program is compiled at start; a batch is padded to the next one."""

    def changes(self) -> dict[str, Any]:
        """Return the options that shape an answer, beside the policy itself."""
        return {key: value for key in ("num_steps", "noise_scale") if (value := getattr(self, key)) != _default(key)}

    @field_validator("batch_sizes")
    @classmethod
    def _rise(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if not sizes or sizes[0] < 1 or list(sizes) != sorted(set(sizes)):
            raise ValueError("it must be a rising list of whole numbers from 1")
        return sizes


def _default(option: str) -> Any:
    return JaxOptions.model_fields[option].default


class Conditions(NamedTuple):
    """Conditioning of each row: fixed chunk steps, and the target of guidance (engines/flow/guidance.py)."""

    prefix: Any
    """Given chunk steps, [B, T, A]."""
    fixed: Any
    """True for given chunk steps, [B, T, 1] bool."""
    target: Any
    """Actions that guidance pulls to, [B, T, A]."""
    weights: Any
    """Weights of guidance, [B, T, 1]; 0 where a row is not guided."""
    strength: Any
    """`guidance_weight` of every denoising step, [K, B, 1, 1]."""
    through_model: Any
    """True for rows whose error goes through the model's Jacobian, [B, 1, 1] bool; None if there are no such rows."""


class JaxBridge:
    """JAX policy as a `VelocityModel` for PyTorch. Tensors and arrays share their memory on the CPU, and nothing is compiled."""

    def __init__(self, policy: JaxPolicy, contract: ModelContract, options: JaxOptions) -> None:
        self.policy, self._contract, self._options = policy, contract, options
        self._inputs = NetworkInputs(contract.cameras, policy.image_size_px, (), 0, "cpu")
        self.weights = jax.device_put(policy.weights, _device(options.device))

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return self._options.batch_sizes[-1]

    def observation(self, requests: Sequence[InferenceRequest]) -> Observation:
        return Observation(
            state=np.stack([request.state for request in requests]),
            images=self._inputs.images(requests).numpy(),
            tokens=self.policy.tokens([request.instruction for request in requests]),
        )

    def perceive(self, requests: Sequence[InferenceRequest]) -> Any:
        return self.policy.perceive(self.weights, self.observation(requests))

    def velocity(self, x: Tensor, time: Tensor, context: Any) -> Tensor:
        v = self.policy.velocity(self.weights, x.detach().numpy(), time.numpy(), context)
        return torch.from_numpy(np.array(v))

    def denormalize(self, actions: Array) -> Array:
        return np.asarray(self.policy.denormalize(self.weights, actions))


class JaxEngine(FlowEngine):
    """Engine with one program per batch size, compiled in `warm_up`, and another one if guidance by a true Jacobian is served."""

    def __init__(self, bridge: JaxBridge, config: SamplingConfig) -> None:
        super().__init__(bridge, config)
        self._contract = replace(self._contract, max_num_steps=0)  # its loop is compiled with its own number of steps
        self._bridge = bridge
        self._run = jax.jit(partial(run, bridge.policy))

    def check_parity(self) -> list[Parity]:
        """Compare the compiled loop, in a batch, with PyTorch's loop around the same functions, one request at a time."""
        with self._lock:
            free = parity.probes(self.contract, "")
            guided = [_guided(request, 1 + i, len(self.contract.action_names)) for i, request in enumerate(free)]
            return [
                parity.compare(block, self._sample(requests).chunks, self._plain(requests), torch.float32)
                for block, requests in (("full loop, in a batch", free), ("full loop, guided", guided))
            ]

    def _plain(self, requests: Sequence[InferenceRequest]) -> Array:
        return np.concatenate([sample(self._bridge, [request], self._config).chunks for request in requests])

    def _sample(self, requests: Sequence[InferenceRequest]) -> FlowSample:
        noise = np.stack([noise_of(request, self.contract, self._config) for request in requests])
        conditions = conditions_of(requests, noise, self.contract, self._config.num_steps)
        found = self._run(self._bridge.weights, self._bridge.observation(requests), noise, conditions)
        chunks, updates = map(np.asarray, found)
        return FlowSample(chunks, updates)


def conditions_of(requests: Sequence[InferenceRequest], noise: Array, contract: ModelContract, num_steps: int) -> Conditions:
    """Return the conditioning of a batch. Raises: `ModelError` for an inference delay that the model was not trained for."""
    start = torch.from_numpy(noise)
    prefix, fixed = fixed_prefixes(requests, contract, start)
    target = target_of(requests, start)
    if target is None:  # the same program, without guidance
        nothing = np.zeros((*noise.shape[:2], 1), np.float32)
        pull: tuple[Any, Any, Any, Any] = (np.zeros_like(noise), nothing, np.zeros((num_steps, len(noise), 1, 1), np.float32), None)
    else:
        strength = [guidance_weight(step / num_steps, target.max_weight) for step in range(num_steps)]
        through = None if target.through_model is None else target.through_model.numpy()
        pull = (target.actions.numpy(), target.weights.numpy(), np.stack(strength).astype(np.float32), through)
    return Conditions(prefix.numpy(), fixed.numpy()[..., None], *pull)


def run(policy: JaxPolicy, weights: Any, observation: Observation, noise: Any, conditions: Conditions) -> tuple[Any, Any]:
    """Return chunks, [B, T, A], from `noise`, [B, T, A], and the change by each step, [B, K, T, A], in model space."""
    context = policy.perceive(weights, observation)
    prefix, fixed = conditions.prefix, conditions.fixed
    num_steps = conditions.strength.shape[0]

    def step(x: Any, at: tuple[Any, Any]) -> tuple[Any, Any]:
        tau, strength = at
        x = jnp.where(fixed, prefix, x)
        time = jnp.where(fixed[..., 0], 0.0, 1.0 - tau)
        v, correction = _guided_step(lambda x: policy.velocity(weights, x, time, context), x, tau, conditions)
        update = (v - strength * correction) / -num_steps
        return x + update, update

    taus = jnp.arange(num_steps) / num_steps
    x, updates = jax.lax.scan(step, noise, (taus, conditions.strength))
    changed = jnp.where(fixed[:, None], 0.0, jnp.moveaxis(updates, 0, 1))
    return jnp.where(fixed, prefix, x), changed


def _guided_step(velocity: Any, x: Any, tau: Any, conditions: Conditions) -> tuple[Any, Any]:
    """Return velocity and correction, as in `guidance.guided_velocity`."""

    def clean(x: Any) -> tuple[Any, Any]:
        v = velocity(x)
        return x - (1.0 - tau) * v, v

    if conditions.through_model is None:
        estimate, v = clean(x)
        return v, (conditions.target - estimate) * conditions.weights
    estimate, pull_back, v = jax.vjp(clean, x, has_aux=True)
    error = (conditions.target - estimate) * conditions.weights
    return v, jnp.where(conditions.through_model, pull_back(error)[0], error)


def build(spec: EngineSpec) -> JaxEngine:
    """Build the engine. Raises: `ModelError`, `ConfigurationError`."""
    options = checked_options(JaxOptions, spec)
    policy = _policy(spec.model, options)
    contract = replace(policy.contract, model=spec.model)
    content_hash = contract.model_hash or _hash(options.policy, policy.weights)
    contract = replace(contract, model_hash=model_hash(content_hash, options.changes()))
    config = SamplingConfig(
        num_steps=options.num_steps,
        noise_scale=options.noise_scale,
        seed=options.seed,
        true_jacobian=options.true_jacobian,
        fixed_shapes=options.batch_sizes,
    )
    return JaxEngine(JaxBridge(policy, contract, options), config)


def _policy(model: str, options: JaxOptions) -> JaxPolicy:
    module, _, name = options.policy.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ModelError(f"{model!r}: options.policy: {options.policy!r} cannot be imported: {error}") from error
    policy: JaxPolicy = function()
    return policy


def _device(name: str) -> Any:
    try:
        return jax.devices(name or None)[0]
    except RuntimeError as error:
        raise ModelError(f"options.device: JAX finds no {name!r} here; leave it out, or install JAX for it") from error


def _hash(policy: str, weights: Any) -> str:
    digest = hashlib.sha256(policy.encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(weights):
        digest.update(f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}".encode())
        digest.update(np.ascontiguousarray(leaf).data)
    return digest.hexdigest()


def _guided(request: InferenceRequest, delay_steps: int, num_actions: int) -> InferenceRequest:
    prefix = np.random.default_rng(delay_steps).standard_normal((delay_steps + 4, num_actions), np.float32)
    return replace(
        request,
        inference_delay_steps=delay_steps,
        prefix_model=prefix,
        conditioning=Conditioning.GUIDED,
        guidance=Guidance(execution_horizon=delay_steps + 3),
    )
