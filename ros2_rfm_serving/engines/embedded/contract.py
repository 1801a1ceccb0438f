"""Contract of an embedded policy, from its network."""

from __future__ import annotations

from ros2_rfm_serving.engines.embedded.networks import FlowPolicyNetwork
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.embedded.token_network import TokenPolicyNetwork
from ros2_rfm_serving.types import ModelContract, OutputKind


def contract_of(
    model: str, network: FlowPolicyNetwork | TokenPolicyNetwork, content_hash: str, options: BundleOptions
) -> ModelContract:
    """Return the contract of an embedded policy. content_hash: of the bundle with the options that change it."""
    config = network.config
    return ModelContract(
        model=model,
        model_hash=content_hash,
        output=OutputKind.ACTION_CHUNK,
        action_names=config.action_names,
        cameras=config.cameras,
        min_image_px=options.min_image_px(config.image_size_px, config.image_size_px),
        state_size=config.state_size,
        chunk_length=config.chunk_length,
        control_rate_hz=config.control_rate_hz,
        max_inference_delay_steps=config.max_inference_delay_steps,
        action_mean=tuple(network.action_mean.tolist()),
        action_std=tuple(network.action_std.tolist()),
    )
