"""From logits to tokens: greedily, or with noise that follows from the request's identity; and how sure the model was.

T: chunk length; A: dimensions of an action; V: bins.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ros2_rfm_serving.engines.base import TokenModel, TokenSampling
from ros2_rfm_serving.engines.identity import generator_of
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import Array, Conditioning, InferenceRequest, ModelContract


def noise_of(request: InferenceRequest, num_tokens: int, num_bins: int, sampling: TokenSampling) -> Tensor:
    """[num_tokens, num_bins] to be added to logits: of the Gumbel distribution, so that their greatest is a sample.

    Position by position: it makes no difference with whom, or in how many steps, the tokens are decoded. Greedy: [1, 1] of zero.
    """
    if not sampling.temperature:
        return torch.zeros(1, 1)
    noise = generator_of(request.id, sampling.seed).gumbel(size=(num_tokens, num_bins)) * sampling.temperature
    return torch.from_numpy(noise).to(torch.float32)


def confidence_of(logits: Tensor, tokens: Tensor, num_actions: int) -> Array:
    """[T A, V], [T A] -> [T]: how likely the model takes it that an action is right to a bin in all its dimensions."""
    likelihood = logits.softmax(-1)
    near = tokens[:, None] + torch.tensor([-1, 0, 1], device=tokens.device)
    known = (near >= 0) & (near < logits.shape[1])
    right = (likelihood.gather(1, near.clamp(0, logits.shape[1] - 1)) * known).sum(1)
    confidence: Array = right.view(-1, num_actions).prod(1).clamp(0, 1).float().cpu().numpy()
    return confidence


def prefix_of(request: InferenceRequest, contract: ModelContract) -> Array:
    """[d, A]: actions that are executed meanwhile, and that the chunk is to continue. Raises: `ModelError`."""
    columns = len(contract.action_names)
    if request.conditioning is Conditioning.GUIDED:
        raise ModelError(f"{contract.model!r} predicts tokens; only flow-matching models can be guided")
    if request.conditioning is Conditioning.NONE:
        return request.prefix_model[:0].reshape(0, columns)
    if request.inference_delay_steps > contract.max_inference_delay_steps:
        raise ModelError(
            f"{contract.model!r} was trained to continue prefixes of up to {contract.max_inference_delay_steps} steps, "
            f"not {request.inference_delay_steps}"
        )
    prefix: Array = request.prefix_model[: request.inference_delay_steps].reshape(-1, columns)
    if not np.isfinite(prefix).all():
        raise ModelError(f"the prefix that {contract.model!r} is to continue is not finite")
    return prefix


def num_tokens(model: TokenModel) -> int:
    """l_a: of a chunk."""
    return model.contract.chunk_length * len(model.contract.action_names)
