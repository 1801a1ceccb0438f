"""`peer_lerobot` whose observations carry JPEGs, decoded before LeRobot's own path begins.

LeRobot neither encodes nor decodes: a user adds this in front of it. Its messages are pickles, in which bytes travel as arrays do.
Only observations that are answered are decoded, as whole images, with our decoder and our call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simplejpeg
from peer_lerobot import CAMERAS, StubbedServer, asking, run


class DecodingServer(StubbedServer):
    def _predict_action_chunk(self, observation_t: Any) -> Any:
        observation = observation_t.get_observation()
        for camera in CAMERAS:
            observation[camera] = simplejpeg.decode_jpeg(observation[camera], colorspace="RGB", fastdct=True)
        return super()._predict_action_chunk(observation_t)


def serve(infer: Callable[..., Any], port: int, ready: Callable[[], None]) -> None:
    run(DecodingServer, infer, port, ready)


def connect(port: int, images: dict[str, bytes]) -> Callable[[Any], Any]:
    return asking(port, images)
