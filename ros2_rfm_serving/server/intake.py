"""Conversion of a received request to a row of a batch: everything is checked before anything is decoded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.server import images
from ros2_rfm_serving.server.contract import delay_envelope_steps
from ros2_rfm_serving.server.sessions import ServerSession
from ros2_rfm_serving.types import (
    MAX_INSTRUCTION_CHARACTERS,
    Array,
    EncodedImage,
    Image,
    InferenceRequest,
    ModelContract,
    ObservationRequest,
    OutputKind,
)

Ready = Callable[[EncodedImage], Image | EncodedImage]
"""Function that prepares an image for an engine. It raises `BadMessageError`."""
Clock = Callable[[], float]
ACTION_CHUNK = OutputKind.ACTION_CHUNK


def readying(
    contract: ModelContract,
    takes_encoded: bool,
    fit: Callable[[Image], Image] | None,
    decode: Callable[[EncodedImage], Image | None] | None = None,
) -> Ready:
    """Return the function that prepares an image for an engine, on a decoder's thread. fit, decode: `Engine.fit_image`,
    `decode_image`."""
    if takes_encoded:
        return images.check

    def here(image: EncodedImage) -> Image:
        decoded = images.decode(image, contract.min_image_px)
        return decoded if fit is None else fit(decoded)

    def there(image: EncodedImage) -> Image:
        found = decode(images.check(image)) if decode and image.format != "rgb8" else None
        return here(image) if found is None else found

    return here if decode is None else there


def decoded_request(
    observation: ObservationRequest, session: ServerSession, contract: ModelContract, ready: Ready, clock: Clock | None = None
) -> InferenceRequest:
    """Return the request for the engine. ready: result of `readying`. clock: measures `decoding_s`.
    Raises: `BadMessageError` if a part of the observation is refused."""
    _check(observation, session, contract)
    pixels: dict[str, Image | EncodedImage] = {}
    decoding_s = 0.0
    if observation.images:
        began_s = clock() if clock else 0.0
        pixels = {image.camera: ready(image) for image in observation.images if image.camera in contract.cameras}
        decoding_s = clock() - began_s if clock else 0.0
    return InferenceRequest(
        observation.id,
        observation.instruction or session.instruction,
        observation.state,
        pixels,
        observation.inference_delay_steps,
        observation.prefix_model,
        observation.prefix_robot,
        session.conditioning,
        session.guidance,
        session.horizon,
        session.pipelining,
        session.num_steps,
        decoding_s,
    )


def _check(observation: ObservationRequest, session: ServerSession, contract: ModelContract) -> None:
    if delay_steps := observation.inference_delay_steps:
        envelope = delay_envelope_steps(contract, session.conditioning)
        if not 0 <= delay_steps <= envelope:
            delay = f"an inference delay of {delay_steps} steps"
            raise BadMessageError("delay_too_long", f"{delay}; with {session.conditioning.value!r} the model bridges {envelope}")
    if len(observation.instruction) > MAX_INSTRUCTION_CHARACTERS:
        raise BadMessageError("bad_shape", f"the instruction has {len(observation.instruction)} characters")
    if session.instruction and observation.instruction not in ("", session.instruction):
        raise BadMessageError("other_instruction", f"this session is for {session.instruction!r} alone")
    if contract.state_size or observation.state.size:
        _check_array("state", observation.state, (contract.state_size,))
    if len(observation.prefix_model):
        _check_array("prefix_model", observation.prefix_model, (None, len(contract.action_names)))
    if len(observation.prefix_robot):
        _check_array("prefix_robot", observation.prefix_robot, (None, len(contract.action_names)))
    if contract.cameras or observation.images:
        acts = contract.output is ACTION_CHUNK
        cameras = [image.camera for image in observation.images if acts or image.camera in contract.cameras]
        if sorted(cameras) != sorted(contract.cameras):
            raise BadMessageError("bad_cameras", f"images of {cameras}, the model takes {list(contract.cameras)}")


def _check_array(name: str, values: Array, shape: tuple[int | None, ...]) -> None:
    fits = values.ndim == len(shape) and all(s is None or s == n for s, n in zip(shape, values.shape, strict=True))
    if not fits:
        raise BadMessageError("bad_shape", f"{name} has shape {values.shape}, the model takes {shape}")
    if not np.isfinite(values).all():
        raise BadMessageError("non_finite", f"{name} holds NaN or infinity")
