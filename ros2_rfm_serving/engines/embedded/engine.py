"""Embedded policy behind the interface (`VelocityModel`), and loading of embedded models from their bundles. PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from ros2_rfm_serving.engines.base import Engine, Predicts, SamplingConfig, TokenSampling
from ros2_rfm_serving.engines.embedded import bundle
from ros2_rfm_serving.engines.embedded.contract import contract_of
from ros2_rfm_serving.engines.embedded.embedded import Embedded
from ros2_rfm_serving.engines.embedded.inputs import placed
from ros2_rfm_serving.engines.embedded.judge import Judge
from ros2_rfm_serving.engines.embedded.layers import kernels_of
from ros2_rfm_serving.engines.embedded.networks import FlowPolicyConfig, FlowPolicyNetwork, JudgeNetwork
from ros2_rfm_serving.engines.embedded.options import MAX_BATCH_SIZE, ON_CPU, BundleOptions
from ros2_rfm_serving.engines.embedded.planner import SubgoalPlanner
from ros2_rfm_serving.engines.embedded.planner_network import PlannerNetwork
from ros2_rfm_serving.engines.embedded.token_network import TokenPolicyConfig, TokenPolicyNetwork
from ros2_rfm_serving.engines.embedded.token_policy import TokenPolicy
from ros2_rfm_serving.engines.flow.graphs import Function, Tensors, Traced, accelerated, without_gradients
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.engines.identity import model_hash
from ros2_rfm_serving.engines.precision import num_bytes, precision_of
from ros2_rfm_serving.engines.tokens.engine import TokenEngine
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import Array, InferenceRequest, ModelContract

Kind = TypeVar("Kind", bound=nn.Module)


def load_embedded(model: str, folder: Path, options: BundleOptions = ON_CPU) -> Engine:
    """Load a bundle as an engine. Raises: `ModelError`."""
    options = options.on_device(model)
    network, content_hash = bundle.load(folder)
    content_hash = model_hash(content_hash, options.changes(vars(network.config)))
    return _engine_of(model, folder, network, content_hash, options)


def _engine_of(model: str, folder: Path, network: bundle.Network, content_hash: str, options: BundleOptions) -> Engine:
    if isinstance(network, FlowPolicyNetwork):
        policy = FlowPolicy(model, network, content_hash, options, partial(_as_saved, FlowPolicyNetwork, folder))
        return SteppingEngine(policy, sampling_of(network.config, options))
    if options.quantizes:
        raise ModelError(f"{model!r}: options.dtype {options.dtype!r} is for flow policies and architectures; say `bfloat16`")
    if isinstance(network, TokenPolicyNetwork):
        tokens = TokenPolicy(model, network, content_hash, options, partial(_as_saved, TokenPolicyNetwork, folder))
        return TokenEngine(tokens, _token_sampling(network.config, options))
    if isinstance(network, PlannerNetwork):
        return SubgoalPlanner(model, network, content_hash, options, partial(_as_saved, PlannerNetwork, folder))
    return Judge(model, network, content_hash, options, partial(_as_saved, JudgeNetwork, folder))


def _as_saved(kind: type[Kind], folder: Path) -> Kind:
    network, _ = bundle.load(folder)
    assert isinstance(network, kind)
    return network


def sampling_of(config: FlowPolicyConfig, options: BundleOptions) -> SamplingConfig:
    return SamplingConfig(
        predicts=Predicts(config.predicts),
        num_steps=options.num_steps or config.num_steps,
        train_steps=config.train_steps,
        clean_limit=config.clean_limit,
        noise_scale=config.noise_scale if options.noise_scale is None else options.noise_scale,
        seed=options.seed,
        true_jacobian=options.true_jacobian,
        device=options.device,
        fixed_shapes=options.fixed_shapes,
        warm_sizes=_paths(config) if options.traces else (),
        max_rows=options.max_rows or 0,
    )


def _paths(config: FlowPolicyConfig) -> tuple[int, ...]:
    """Return the batch sizes from which on other kernels run, and so another graph."""
    runs = {rows: kernels_of(rows, config.tokens_of_a_row) for rows in range(1, MAX_BATCH_SIZE + 1)}
    return tuple(rows for rows in runs if runs[rows] != runs.get(rows - 1))


def _token_sampling(config: TokenPolicyConfig, options: BundleOptions) -> TokenSampling:
    temperature = config.temperature if options.temperature is None else options.temperature
    return TokenSampling(temperature=temperature, seed=options.seed, device=options.device, max_rows=options.max_rows or 0)


class FlowPolicy(Embedded[FlowPolicyNetwork]):
    """Embedded policy, split for our loop (`VelocityModel`, `Referenced`).

    Its context is flat: key and value of each head block, computed once per batch and read by every denoising step.
    """

    def _begin(self, model: str, content_hash: str) -> None:
        network, options = self._network, self._options
        self._inputs = placed(network, options)
        self.fit_image, self.decode_image = self._inputs.fit_image, self._inputs.decode_image
        self._action_mean = network.action_mean.cpu().numpy()
        self._action_std = network.action_std.cpu().numpy()
        self._contract = contract_of(model, network, content_hash, options)
        plain = partial(accelerated, compiled=options.compiles, recorded=options.records)
        fast: Callable[[Function], Function] = self._traced if options.traces else plain
        self._encode, self._velocity, self._velocity_at = fast(self._keys_values), fast(self._velocity_of), fast(self._modulated)
        blocks: tuple[Function, ...] = (self._tokens, *map(_alone, network.encoder), self._read_by_head)
        self._perception = [fast(block) for block in blocks]
        self._few_times = not options.fixed_shapes
        self._modulation_at = lru_cache(maxsize=1024)(lambda time: network.modulation(torch.tensor([time], device=options.device)))

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return MAX_BATCH_SIZE

    def perceive(self, requests: Sequence[InferenceRequest]) -> Tensors:
        return self._encode(*self.inputs(requests))

    def velocity(self, x: Tensor, time: Tensor, context: Tensors) -> Tensor:
        if self._few_times and not torch.is_grad_enabled():
            return self._velocity_at(x, self._modulation(time), *context)[0]
        return self._velocity(x, time, *context)[0]

    def denormalize(self, actions: Array) -> Array:
        denormalized: Array = actions * self._action_std + self._action_mean
        return denormalized

    # --- perception in stages (`InBlocks`) ---

    def inputs(self, requests: Sequence[InferenceRequest]) -> Tensors:
        return self._inputs.states(requests), self._inputs.images(requests), self._inputs.words(requests)

    @property
    def perception(self) -> Sequence[Function]:
        """Tokens, each block of the encoder, keys and values."""
        return self._perception

    # --- members for `engines/flow/parity.py` ---

    @property
    def weights_dtype(self) -> torch.dtype:
        return precision_of(self._network, self._network.kind.dtype)

    @property
    def weights_bytes(self) -> int:
        return num_bytes(self._network)

    @property
    def probe_instruction(self) -> str:
        return " ".join(self._network.config.vocabulary[2:])

    def reference(self) -> FlowPolicy:
        network, options = self._saved().cpu().double(), BundleOptions(device="cpu", trace=False)
        exact = FlowPolicy(self._contract.model, network, self._contract.model_hash, options)
        exact._few_times = False
        return exact

    def encoded_images(self, requests: Sequence[InferenceRequest]) -> Tensor:
        tokens: Tensor = self._network.image_tokens(self._inputs.images(requests))
        return tokens

    # --- the network, flat ---

    def _traced(self, function: Function) -> Function:
        sizes = self._network.config.tokens_of_a_row

        def path(inputs: Tensors) -> Hashable:
            return tuple((tensor.dtype, tensor.dim()) for tensor in inputs), kernels_of(len(inputs[0]), sizes)

        return without_gradients(function, Traced(function, self._network, path))

    def _keys_values(self, state: Tensor, images: Tensor, words: Tensor) -> Tensors:
        return _flat(self._network.encode(state, images, words))

    def _tokens(self, state: Tensor, images: Tensor, words: Tensor) -> Tensors:
        return (self._network.tokens(state, images, words),)

    def _read_by_head(self, tokens: Tensor) -> Tensors:
        return _flat(self._network.keys_values(tokens))

    def _velocity_of(self, x: Tensor, time: Tensor, *context: Tensor) -> Tensors:
        return (self._network.velocity(x, time, _pairs(context)),)

    def _modulated(self, x: Tensor, modulation: Tensor, *context: Tensor) -> Tensors:
        return (self._network.velocity_at(x, modulation, _pairs(context)),)

    def _modulation(self, time: Tensor) -> Tensor:
        """Return the modulation of a batch's times, which are few: those of denoising steps, and 0 of fixed chunk steps.
        So each is computed once, not per token and call."""
        if torch.equal(time, time[:, :1].expand_as(time)):
            time = time[:, :1]  # nothing is fixed: a row's tokens share its time, and values that broadcast need not be read
        times, which = time.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        distinct = [self._modulation_at(each) for each in times.tolist()]
        return distinct[0][0] if len(distinct) == 1 else torch.cat(distinct)[which]


def _alone(block: nn.Module) -> Function:
    return lambda tokens: (block(tokens),)


def _flat(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensors:
    return tuple(tensor for pair in pairs for tensor in pair)


def _pairs(context: Tensors) -> list[tuple[Tensor, Tensor]]:
    return list(zip(context[::2], context[1::2], strict=True))
