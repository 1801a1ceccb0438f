"""Choice of tokens from logits: greedy, or with noise that follows from the request's identity; and the model's confidence.

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
    """Return noise, [num_tokens, num_bins], of the Gumbel distribution: the largest of logits plus noise is a sample.

    It is drawn for all positions at once, so that neither the batch nor the number of decoding steps makes a difference. A greedy
    choice has [1, 1] of zero.
    """
    if not sampling.temperature:
        return torch.zeros(1, 1)
    noise = generator_of(request.id, sampling.seed).gumbel(size=(num_tokens, num_bins)) * sampling.temperature
    return torch.from_numpy(noise).to(torch.float32)


def confidence_of(logits: Tensor, tokens: Tensor, num_actions: int) -> Array:
    """Return the model's probability, [T], that all dimensions of an action are right to within a bin.
    logits: [T A, V]. tokens: [T A]."""
    likelihood = logits.softmax(-1)
    near = tokens[:, None] + torch.tensor([-1, 0, 1], device=tokens.device)
    known = (near >= 0) & (near < logits.shape[1])
    right = (likelihood.gather(1, near.clamp(0, logits.shape[1] - 1)) * known).sum(1)
    confidence: Array = right.view(-1, num_actions).prod(1).clamp(0, 1).float().cpu().numpy()
    return confidence


def prefix_of(request: InferenceRequest, contract: ModelContract) -> Array:
    """Return the actions, [d, A], that are executed meanwhile and that the chunk is to continue.
    Raises: `ModelError` if the model cannot continue them, or they are not finite."""
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
    """Return the number of tokens of a chunk, l_a."""
    return model.contract.chunk_length * len(model.contract.action_names)
