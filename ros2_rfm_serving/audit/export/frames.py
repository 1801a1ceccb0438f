"""Training examples, one per command: policies learn from actions at the control rate, at any rate of requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.server.images import decode
from ros2_rfm_serving.types import Array, EncodedImage


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Chunk and row of an action."""

    session_epoch: int
    episode: int
    sequence: int
    row: int
    server: str
    model_hash: str
    """SHA-256 of the model; empty for an emulated one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """One control period with a command."""

    t_s: float
    """Time on the robot's monotonic clock."""
    state: Array
    """State [S] from which the command was computed."""
    images: tuple[EncodedImage, ...]
    """Newest known images, as they were sent."""
    camera_age_s: float
    action: Array
    """Action [A] in robot space, as it was sent: within limits."""
    instruction: str
    source: Source | None = None
    """Source of the action; None for a command of the fallback ladder."""
    fallback: str = ""
    """Step of the fallback ladder; empty for an action of a chunk."""
    failsafe: str = ""
    """Fail-safe state of the robot; empty if unknown."""
    paused: bool = False
    person: bool = False
    """True if an operator had been called, or had given a command in this period."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """Episode of one robot, from its start to the next one's."""

    robot: str
    number: int
    """Number by the robot's count from 1."""
    task: str
    action_names: tuple[str, ...]
    rate_hz: float
    """Declared control rate, which is the rate of frames."""
    frames: Sequence[Frame]
    success: bool | None = None
    """Outcome; None if unknown."""


class Camera(NamedTuple):
    name: str
    height_px: int
    width_px: int


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Common properties of all frames of a data set."""

    action_names: tuple[str, ...]
    state_size: int
    cameras: tuple[Camera, ...]
    """Cameras by name."""
    rate_hz: float

    def __str__(self) -> str:
        cameras = ", ".join(f"{one.name} {one.width_px}x{one.height_px}" for one in self.cameras) or "none"
        names = ", ".join(self.action_names)
        return f"actions ({names}), {self.state_size} state values, cameras: {cameras}, {self.rate_hz:g} Hz"


OTHER_TASK, NO_SUCCESS = "of another task", "without success"
NOT_ASKED_FOR = (OTHER_TASK, NO_SUCCESS)
"""Reasons for leaving out an episode that the user gave."""


@dataclass
class Skipped:
    """Content of a recording that is not in the data set."""

    frames: Counter[str] = field(default_factory=Counter)
    """Reason -> number of frames."""
    episodes: Counter[str] = field(default_factory=Counter)
    resampled: Counter[str] = field(default_factory=Counter)
    """Reason -> number of frames that were added or removed to keep the declared clock."""

    @property
    def left_out(self) -> Counter[str]:
        """Return the number of missing episodes by reason, without those that the user excluded."""
        return Counter({why: count for why, count in self.episodes.items() if why not in NOT_ASKED_FOR})


def shape_of(episode: Episode) -> Shape:
    first = episode.frames[0]
    cameras = (Camera(image.camera, *decode(image).shape[:2]) for image in first.images)
    return Shape(
        action_names=episode.action_names,
        state_size=len(first.state),
        cameras=tuple(sorted(cameras)),
        rate_hz=float(episode.rate_hz),
    )


def same_shape(found: Iterable[Episode], first: Episode, skipped: Skipped) -> Iterator[Episode]:
    """Yield the episodes, without those of `first`'s robot whose shape differs because its parameters were changed.

    Raises: `ConfigurationError` at the first one of another robot that does not fit.
    """
    shape = shape_of(first)
    for episode in found:
        if (other := shape_of(episode)) != shape and episode.robot == first.robot:
            skipped.episodes[f"of another shape than its first one: {other}"] += 1
            continue
        if other != shape:
            parts = f"{first.robot}: {shape}; {episode.robot}: {other}"
            fix = "export each kind of robot for itself, with --robot or --task"
            raise ConfigurationError(f"these robots do not fit in one data set: {parts}", key="export", fix=fix)
        yield episode
