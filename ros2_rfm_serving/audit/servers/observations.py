"""Recorded observations, in the form in which a server received them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ros2_rfm_serving.types import Array, EncodedImage, ObservationRequest, RequestId

Key = tuple[str, str, int]
"""Robot, component, epoch of the session."""


def observation_of(message: Any) -> ObservationRequest:
    """Return the request in an `Observation` from `Bag.read`. Raises: `AttributeError`, `ValueError` for another message."""
    images = tuple(
        EncodedImage(camera=image.header.frame_id, format=image.format, data=np.asarray(image.data, np.uint8).tobytes())
        for image in message.images
    )
    return ObservationRequest(
        id=id_of(message.id),
        stamp_ns=int(message.stamp_ns),
        instruction=message.instruction,
        state=np.array(message.state, np.float32),
        images=images,
        inference_delay_steps=int(message.inference_delay_steps),
        prefix_model=tensor_of(message.prefix_model),
        prefix_robot=tensor_of(message.prefix_robot),
    )


def id_of(message: Any) -> RequestId:
    return RequestId(
        robot=message.robot,
        component=message.component,
        session_epoch=int(message.session_epoch),
        episode=int(message.episode),
        sequence=int(message.sequence),
    )


def tensor_of(message: Any) -> Array:
    values: Array = np.array(message.data, np.float32).reshape(int(message.rows), int(message.columns))
    return values


def key_of(request: RequestId) -> Key:
    return request.robot, request.component, request.session_epoch


MOST_WAITING = 16
"""Largest number of waiting observations of one session, whose newest replaces all others."""


class Observations:
    """Observations by session that wait for their batch. Later ones of the same session replace them."""

    def __init__(self) -> None:
        self._of: dict[Key, dict[int, ObservationRequest]] = {}

    def add(self, observation: ObservationRequest) -> None:
        waiting = self._of.setdefault(key_of(observation.id), {})
        waiting[observation.id.sequence] = observation
        if len(waiting) > MOST_WAITING:
            del waiting[next(iter(waiting))]

    def take(self, request: RequestId) -> ObservationRequest | None:
        """Return and remove the observation of a request, with the older ones; None if it was not recorded."""
        waiting = self._of.get(key_of(request), {})
        found = waiting.get(request.sequence)
        for sequence in [sequence for sequence in waiting if sequence <= request.sequence]:
            del waiting[sequence]
        return found
