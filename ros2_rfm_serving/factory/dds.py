"""Choice of a factory's Fast DDS profile: shared memory has to hold the images that the robots' cameras are declared to send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ros2_rfm_serving.factory.nodes import WORLD_EXECUTABLES, NodeSpec, merged_parameters

SEGMENT_BYTES = 512 * 1024
"""Shared memory per process by default in Fast DDS. A best-effort message that does not fit is lost without a warning."""
HELD = 3
"""Observations that it has to hold: one is written while the server still reads the last one, and requests overlap."""
JPEG_BYTES_PER_PIXEL = {90: 0.5, 100: 1.0}
"""Quality -> upper bound of the size, up to that quality. Camera images have half of it: 0.27 at 90."""
RAW_BYTES_PER_PIXEL = 3.0
JPEG_QUALITY, IMAGE_SIZE_PX, WORLD_IMAGE_SIZE_PX = 90, 640, 96
"""Defaults of the parameters `jpeg_quality` and `max_image_size_px` of a robot, and of `image_size_px` of a simulated one."""


class DdsProfile(NamedTuple):
    file: str
    """File in config/dds/."""
    reason: str


def dds_profile(nodes: Sequence[NodeSpec]) -> DdsProfile:
    """Return the profile for all these nodes. Raises: `ConfigurationError` for an invalid parameter file of a robot."""
    largest = max((message_bytes(size_px, robot) for robot, size_px in _robots(nodes)), default=0)
    needed = f"{HELD} messages of up to {largest / 1e6:.2f} MB"
    if HELD * largest <= SEGMENT_BYTES:
        return DdsProfile("any_vendor.xml", f"{needed} fit the shared memory of 0.5 MB that a process has")
    return DdsProfile("large_images.xml", f"{needed} need more shared memory than the 0.5 MB that a process has by default")


def message_bytes(size_px: int, parameters: Mapping[str, Any]) -> int:
    """Return the size of the largest message that a robot sends or receives: an observation, or a camera's raw image."""
    cameras, quality = parameters.get("cameras", ["front"]), parameters.get("jpeg_quality", JPEG_QUALITY)
    per_pixel = next(size for limit, size in JPEG_BYTES_PER_PIXEL.items() if quality <= limit)
    kinds = [parameters.get("camera_type", "compressed"), *(kind.rpartition("=")[2] for kind in parameters.get("camera_types", ()))]
    raw = RAW_BYTES_PER_PIXEL if "image" in kinds else 0.0
    return int(size_px**2 * max(len(cameras) * per_pixel, raw))


def _robots(nodes: Sequence[NodeSpec]) -> list[tuple[Mapping[str, Any], int]]:
    """Return (parameters, longer side of its images) of each robot."""
    worlds = {
        node.namespace: node.parameters.get("image_size_px", WORLD_IMAGE_SIZE_PX)
        for node in nodes
        if node.executable in WORLD_EXECUTABLES
    }
    robots = [(node.namespace, merged_parameters(node)) for node in nodes if node.executable == "robot_node"]
    return [(one, min(worlds.get(name, 2048), one.get("max_image_size_px", IMAGE_SIZE_PX))) for name, one in robots]
