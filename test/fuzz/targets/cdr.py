"""`ros/wire/cdr.py`: the bytes of an Observation or an ActionChunk, as a raw subscription gets them.

First byte: which of the two; the rest: the message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from rclpy.serialization import deserialize_message, serialize_message
from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.wire import cdr, convert
from ros2_rfm_serving.types import EncodedImage, ObservationRequest
from test.unit import fakes

OBSERVATION = fakes.observation(
    3, state=np.arange(3, dtype=np.float32), images=(EncodedImage(camera="front", format="jpeg", data=b"12345"),)
)
CHUNK = fakes.chunk(OBSERVATION, confidence=np.ones(4, np.float32))
Read, Write = Callable[[bytes], Any], Callable[[Any], bytes]


def _by_generated_code(data: bytes, kind: type) -> Any:
    message = deserialize_message(data, kind)
    return convert.observation_from(message) if kind is msg.Observation else convert.chunk_from(message)


def seeds() -> list[bytes]:
    messages = [(0, cdr.observation_to(OBSERVATION)), (1, cdr.reply_to(CHUNK))]
    messages += [(0, serialize_message(convert.observation_to(OBSERVATION))), (1, serialize_message(convert.reply_to(CHUNK)))]
    return [bytes([kind]) + data for kind, data in messages]


def check(data: bytes) -> None:
    observes = not data or data[0] % 2 == 0
    read: Read = cdr.observation_from if observes else cdr.chunk_from
    write: Write = cdr.observation_to if observes else cdr.reply_to
    kind = msg.Observation if observes else msg.ActionChunk
    try:
        noun = read(data[1:])
    except BadMessageError:
        assert cdr.observation_from(cdr.observation_to(OBSERVATION)).id == OBSERVATION.id
        return
    assert max(_rows(noun)) <= convert.MAX_TENSOR_VALUES
    written = write(noun)
    assert write(read(written)) == written
    if "\0" not in _texts(noun):  # ends a text in the generated code
        assert write(_by_generated_code(written, kind)) == written


def _rows(noun: Any) -> list[int]:
    """What a loop over a matrix would run through, even if nothing is in it."""
    return [len(noun.prefix_model), len(noun.prefix_robot)] if isinstance(noun, ObservationRequest) else [len(noun.chunk_robot)]


def _texts(noun: Any) -> str:
    own = noun.id.robot + noun.id.component
    if isinstance(noun, ObservationRequest):
        return own + noun.instruction + "".join(image.camera + image.format for image in noun.images)
    return own + noun.server + noun.model_hash + "".join(noun.action_names)
