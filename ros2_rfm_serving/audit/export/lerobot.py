"""Export of episodes as a LeRobotDataset (v3.0), written by LeRobot itself, which maintains its format.

LeRobot's policies read `observation.state`, `observation.images.<camera>` and `action`, its reinforcement learning reads
`next.reward`, `next.success` and `next.done`, with one frame per executed action. All other columns state the origin of a frame
(docs/export.md); their names begin with neither `observation` nor `action`, so that no policy uses them as its input (nor with
`image`: LeRobot treats those as pictures).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from datasets.utils.logging import disable_progress_bar, enable_progress_bar
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from ros2_rfm_serving.audit.export.clock import frames_per_second
from ros2_rfm_serving.audit.export.frames import Episode, Shape, Source
from ros2_rfm_serving.server.images import decode
from ros2_rfm_serving.types import EncodedImage, Image

FLAGS = ("next.done", "next.success", "is_intervention", "intervention.paused", "intervention.person")
NUMBERS = ("success", "source.session_epoch", "source.episode", "source.sequence", "source.row", "robot_episode")
REALS = ("next.reward", "time_s", "camera_age_s")
TEXTS = ("source.server", "source.model_hash", "fallback", "failsafe", "robot", "robot_task")
NO_SOURCE = Source(session_epoch=-1, episode=-1, sequence=-1, row=-1, server="", model_hash="")
SUCCESS = {None: -1, False: 0, True: 1}


def features(shape: Shape, *, videos: bool) -> dict[str, Any]:
    """Return the columns in LeRobot's declaration."""
    found: dict[str, Any] = {
        "observation.state": {"dtype": "float32", "shape": (shape.state_size,), "names": None},
        "action": {"dtype": "float32", "shape": (len(shape.action_names),), "names": list(shape.action_names)},
    }
    for camera in shape.cameras:
        size = (camera.height_px, camera.width_px, 3)
        kind = "video" if videos else "image"
        found[f"observation.images.{camera.name}"] = {"dtype": kind, "shape": size, "names": ["height", "width", "channels"]}
    for dtype, names in (("bool", FLAGS), ("int64", NUMBERS), ("float32", REALS), ("string", TEXTS)):
        found |= {name: {"dtype": dtype, "shape": (1,), "names": None} for name in names}
    return found


def write(episodes: Iterable[Episode], shape: Shape, folder: Path, name: str, *, videos: bool = False) -> int:
    """Write the episodes to a new `folder`, and return the number of frames. A killed process leaves `<folder>.partial`."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    columns = features(shape, videos=videos)
    fps = frames_per_second(shape.rate_hz, videos=videos)
    data = LeRobotDataset.create(name, fps, columns, root=partial, robot_type="", use_videos=videos)
    pictures = _Pictures()
    disable_progress_bar()
    try:
        for episode in episodes:
            for frame in rows(episode, pictures):
                data.add_frame(frame)
            _flatten(_buffer_of(data))
            data.save_episode()
        data.finalize()
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        enable_progress_bar()
    partial.rename(folder)
    return int(data.meta.total_frames)


def rows(episode: Episode, pictures: _Pictures) -> Iterator[dict[str, Any]]:
    """Yield frames for `LeRobotDataset.add_frame`. The reward is 1 in the last frame of an episode that succeeded."""
    last = len(episode.frames) - 1
    for at, frame in enumerate(episode.frames):
        done, succeeded = at == last, at == last and episode.success is True
        source = frame.source or NO_SOURCE
        images = {f"observation.images.{image.camera}": pictures.of(image) for image in frame.images}
        reals = (float(succeeded), frame.t_s - episode.frames[0].t_s, frame.camera_age_s)
        flags = (done, succeeded, frame.paused or frame.person, frame.paused, frame.person)
        place = (source.session_epoch, source.episode, source.sequence, source.row)
        numbers = (SUCCESS[episode.success], *place, episode.number)
        texts = (source.server, source.model_hash, frame.fallback, frame.failsafe, episode.robot, episode.task)
        yield {
            "task": frame.instruction or episode.task,
            "observation.state": np.asarray(frame.state, np.float32),
            "action": np.asarray(frame.action, np.float32),
            **images,
            **_columns(FLAGS, flags, np.bool_),
            **_columns(NUMBERS, numbers, np.int64),
            **_columns(REALS, reals, np.float32),
            **dict(zip(TEXTS, texts, strict=True)),
        }


def _buffer_of(data: LeRobotDataset) -> dict[str, Any]:
    """Return the columns of the episode that is being written, which LeRobot 0.5 moved into a writer."""
    holder = data if hasattr(data, "episode_buffer") else data.writer
    buffer: dict[str, Any] = holder.episode_buffer
    return buffer


def _flatten(buffer: dict[str, Any]) -> None:
    """Convert arrays of one value to numbers, in place.

    LeRobot requires such arrays, also for an action of one column, and newer numpys do not accept them for the number that it then
    needs.
    """
    for name, values in buffer.items():
        if isinstance(values, list) and values and isinstance(values[0], np.ndarray) and values[0].shape == (1,):
            buffer[name] = [value[0] for value in values]


def _columns(names: tuple[str, ...], values: tuple[Any, ...], dtype: type[np.generic]) -> dict[str, Any]:
    return {name: np.asarray([value], dtype) for name, value in zip(names, values, strict=True)}


class _Pictures:
    """Cache of decoded images, because several actions follow from one image."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[EncodedImage, Image]] = {}

    def of(self, image: EncodedImage) -> Image:
        known = self._last.get(image.camera)
        if known is None or known[0] is not image:
            known = self._last[image.camera] = image, decode(image)
        return known[1]
