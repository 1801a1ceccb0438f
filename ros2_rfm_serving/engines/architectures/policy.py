"""Adapter of any `Architecture` to the interface (`SteppedModel`, `Referenced`).

Loop, batching and parity check need no code of their own for an architecture.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ros2_rfm_serving.engines.architectures.base import Architecture, Observation
from ros2_rfm_serving.engines.architectures.manifest import Affine, BundleManifest
from ros2_rfm_serving.engines.architectures.processor import Processor, Tokenizer
from ros2_rfm_serving.engines.embedded.options import MAX_BATCH_SIZE, ON_CPU, BundleOptions
from ros2_rfm_serving.engines.flow.graphs import Tensors, accelerated
from ros2_rfm_serving.engines.nvjpeg import decoder_for
from ros2_rfm_serving.engines.precision import num_bytes, precision_of, quantize, widen
from ros2_rfm_serving.types import Array, InferenceRequest, ModelContract, OutputKind


class ArchitecturePolicy:
    def __init__(
        self,
        contract: ModelContract,
        manifest: BundleManifest,
        network: Architecture,
        tokenizer: Tokenizer,
        options: BundleOptions = ON_CPU,
        saved: Callable[[], Architecture] | None = None,
    ) -> None:
        """Create the policy. saved: loads the network as it was saved, for the reference; None for a copy of the network here."""
        self._manifest, self._network, self._tokenizer = manifest, network, tokenizer
        self._saved, self._rounds, self._options = saved, True, options
        if options.quantizes:
            quantize(network, options.dtype, network.EXACT)
        elif options.dtype != "float32":
            network.cast(getattr(torch, options.dtype))
        network.to(options.device)
        self.processor = Processor(manifest, network.config, tokenizer, options.device)
        self.fit_image = self.processor.ahead.send
        self.decode_image = decoder_for(self.processor.uploads, options.device) if options.device_decoding else None
        self._contract = contract
        self._any_shape = not options.fixed_shapes
        """True if shapes are not fixed.
        A row without a fixed prefix then has one time, and prompts are padded to the longest, not further."""
        fast = partial(accelerated, compiled=options.compiles)
        self._perceive = fast(self._context_of, recorded=options.records and network.RECORDS_PERCEPTION)
        self._velocity = fast(self._velocity_of, recorded=options.records)

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return MAX_BATCH_SIZE

    def perceive(self, requests: Sequence[InferenceRequest]) -> Tensors:
        observation = self.processor.observation(requests)
        if self._network.READS_PADDING or not self._any_shape:
            return self._perceive(*observation)
        length, longest = observation.words.shape[1], max(1, int(observation.words.sum(dim=1).max()))
        shorter = observation._replace(tokens=observation.tokens[:, :longest], words=observation.words[:, :longest])
        return self._network.lengthened(self._perceive(*shorter), length - longest)

    def velocity(self, x: Tensor, time: Tensor, context: Tensors) -> Tensor:
        if self._any_shape and torch.equal(time, time[:, :1].expand_as(time)):
            time = time[:, :1]
        return self._velocity(x, time, *context)[0]

    def denormalize(self, actions: Array) -> Array:
        return self.processor.denormalize(actions)

    # --- actions that are relative to the state (`Relative`) ---

    @property
    def is_relative(self) -> bool:
        return self.processor.is_relative

    def placed(self, actions: Array, states: Sequence[Array]) -> Array:
        return self.processor.placed(actions, states)

    def anchored(self, requests: Sequence[InferenceRequest]) -> Sequence[InferenceRequest]:
        """Return the requests with prefixes in their own model space.
        A prefix that is not known in robot space is dropped, as its place in the current model space is unknown."""
        if not self.is_relative:
            return requests
        return [
            replace(request, prefix_model=self.processor.model_space(request.prefix_robot, request.state))
            if len(request.prefix_robot)
            else replace(request, prefix_model=request.prefix_robot)
            for request in requests
        ]

    # --- members for `engines/flow/parity.py` ---

    @property
    def weights_dtype(self) -> torch.dtype:
        return precision_of(self._network, self._network.dtype)

    @property
    def computed_by(self) -> str:
        """Options and hardware for `Engine.computed_by`."""
        return self._options.computed_by

    @property
    def weights_bytes(self) -> int:
        return num_bytes(self._network)

    @property
    def probe_instruction(self) -> str:
        return "pick up the red cube"

    def encoded_images(self, requests: Sequence[InferenceRequest]) -> Tensor:
        return self._network.image_tokens(self.processor.observation(requests).images.to(self._network.dtype))

    @contextmanager
    def unrounded(self) -> Iterator[None]:
        """Disable the rounding of activations, in the reference too, within the block.
        Values that are rounded to 8 bits differ by whole steps after the last of 24 layers."""
        self._rounds = False
        self._network.round_activations(self._rounds)
        try:
            yield
        finally:
            self._rounds = True
            self._network.round_activations(self._rounds)

    def reference(self) -> ArchitecturePolicy:
        """Return the reference. It takes the memory of the saved weights, and of one tensor in float64."""
        network = self._as_saved()
        widen(network)
        network.computes_in = torch.float64
        return self._with(network)

    def whole_reference(self) -> ArchitecturePolicy:
        """Return a reference with all weights in float64.
        It serves to count operations and bytes, as no tensor is widened in between."""
        return self._with(self._as_saved().double())

    def _as_saved(self) -> Architecture:
        return (self._saved() if self._saved else copy.deepcopy(self._network)).cpu()

    def _with(self, network: Architecture) -> ArchitecturePolicy:
        network.round_activations(self._rounds)
        exact = ArchitecturePolicy(self._contract, self._manifest, network, self._tokenizer)
        exact._any_shape = self._any_shape  # otherwise it would lack the padding that these prompts have
        return exact

    # --- the network, flat ---

    def _context_of(self, *observation: Tensor) -> Tensors:
        return self._network.perceive(Observation(*observation))

    def _velocity_of(self, x: Tensor, time: Tensor, *context: Tensor) -> Tensors:
        return (self._network.velocity(x, time, context).to(x.dtype),)


def contract_of(model: str, manifest: BundleManifest, chunk_length: int, content_hash: str) -> ModelContract:
    """Return the contract of a bundle. content_hash: of the bundle."""
    promise, processing = manifest.contract, manifest.processing
    of_places = not processing.relative and processing.action.lines == 1  # else these are no positions of a robot
    action = processing.action if of_places else Affine()
    return ModelContract(
        model=model,
        model_hash=content_hash,
        output=OutputKind.ACTION_CHUNK,
        chunk_length=chunk_length,
        action_mean=action.centre,
        action_std=action.deviation,
        **promise.model_dump(),
    )
