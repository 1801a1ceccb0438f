"""Engine for a bundle whose `kind` is `architecture`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ros2_rfm_serving.engines.architectures import bundle
from ros2_rfm_serving.engines.architectures.base import Architecture
from ros2_rfm_serving.engines.architectures.manifest import Sampling
from ros2_rfm_serving.engines.architectures.policy import ArchitecturePolicy, contract_of
from ros2_rfm_serving.engines.base import SamplingConfig
from ros2_rfm_serving.engines.embedded.options import ON_CPU, BundleOptions
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.engines.identity import model_hash


def load_architecture(model: str, folder: Path, options: BundleOptions = ON_CPU) -> SteppingEngine:
    """Load a bundle as an engine. Raises: `ModelError`."""
    options = options.on_device(model)
    loaded = bundle.load(folder, as_saved=options.dtype != "float32")
    manifest, network = loaded.manifest, loaded.network
    changed = options.changes({**manifest.sampling.model_dump(mode="json")})
    contract = contract_of(model, manifest, network.config.chunk_length, model_hash(loaded.content_hash, changed))
    contract = replace(contract, min_image_px=options.min_image_px(*manifest.processing.images.least_px))
    policy = ArchitecturePolicy(contract, manifest, network, loaded.tokenizer, options, saved=lambda: _as_saved(folder))
    return SteppingEngine(policy, sampling_of(manifest.sampling, network.config.action_columns, options))


def _as_saved(folder: Path) -> Architecture:
    return bundle.load(folder, as_saved=True).network


def sampling_of(sampling: Sampling, num_columns: int, options: BundleOptions) -> SamplingConfig:
    return SamplingConfig(
        predicts=sampling.predicts,
        num_steps=options.num_steps or sampling.num_steps,
        train_steps=sampling.train_steps,
        clean_limit=sampling.clean_limit,
        noise_scale=sampling.noise_scale if options.noise_scale is None else options.noise_scale,
        noise=sampling.noise,
        ramp_rate=sampling.ramp_rate,
        seed=options.seed,
        num_columns=num_columns,
        true_jacobian=options.true_jacobian,
        device=options.device,
        fixed_shapes=options.fixed_shapes,
        max_rows=options.max_rows or 0,
    )
