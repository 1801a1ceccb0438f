"""Requests that fit a contract and have no meaning, for warm-up and measurement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import simplejpeg

from ros2_rfm_serving.engines.answers import answers_of
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import (
    Conditioning,
    EncodedImage,
    EngineReply,
    Guidance,
    Image,
    InferenceRequest,
    ModelContract,
    RequestId,
    empty,
)

SMALL_PX = (96, 96)
"""Width and height of an image, if its size does not matter."""


def warm_up(engine: Engine, batch_size: int, size_px: tuple[int, int] = SMALL_PX) -> EngineReply | None:
    """Run a batch on an action model and return its last answer, or None if it is no action model.

    Raises: `ModelError` if its answer does not keep to its contract.
    """
    contract = engine.contract
    if not contract.chunk_length:
        return None
    answers = answers_of(engine, [warmup_request(contract, size_px, encoded=engine.takes_encoded)] * batch_size)
    last = None
    promised = (contract.chunk_length, len(contract.action_names))
    for answer in answers:
        if isinstance(answer, ModelError):
            raise answer
        last = answer
        for name, chunk in (("chunk_model", answer.chunk_model), ("chunk_robot", answer.chunk_robot)):
            if chunk.shape != promised:
                raise ModelError(f"{contract.model!r}: {name} has the shape {chunk.shape}; its contract promises {promised}")
    return last


def warmup_request(contract: ModelContract, size_px: tuple[int, int] = SMALL_PX, *, encoded: bool = False) -> InferenceRequest:
    """Return a blank request. size_px: width and height of its images. encoded: for an engine with `takes_encoded`."""
    return InferenceRequest(
        id=RequestId(robot="", component="", session_epoch=0, episode=0, sequence=0),
        instruction="",
        state=np.zeros(contract.state_size, np.float32),
        images={camera: _image(camera, size_px, encoded) for camera in contract.cameras},
        inference_delay_steps=0,
        prefix_model=empty(0, len(contract.action_names)),
    )


def guided(request: InferenceRequest, *, true_jacobian: bool) -> InferenceRequest:
    """Return the request with guidance and a prefix of one chunk step of zeros."""
    prefix = empty(1, request.prefix_model.shape[1])
    guidance = Guidance(true_jacobian=true_jacobian)
    return replace(request, prefix_model=prefix, conditioning=Conditioning.GUIDED, guidance=guidance)


def _image(camera: str, size_px: tuple[int, int], encoded: bool) -> Image | EncodedImage:
    width_px, height_px = size_px
    black = np.zeros((height_px, width_px, 3), np.uint8)
    return EncodedImage(camera=camera, format="jpeg", data=simplejpeg.encode_jpeg(black)) if encoded else black
