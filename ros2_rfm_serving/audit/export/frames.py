"""Examples for training, one per command: policies learn from actions at the control rate, whatever the rate of requests."""

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
    """Which row of which chunk an action was."""

    session_epoch: int
    episode: int
    sequence: int
    row: int
    server: str
    model_hash: str
    """Empty: emulated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """One control period in which something was commanded."""

    t_s: float
    """The robot's monotonic clock."""
    state: Array
    """[S] that the command followed from"""
    images: tuple[EncodedImage, ...]
    """The newest that were known, as they were sent."""
    camera_age_s: float
    action: Array
    """[A] robot space, as it was sent: within limits"""
    instruction: str
    source: Source | None = None
    """None: no row of a chunk, but what the fallback ladder said."""
    fallback: str = ""
    """Rung of that ladder; empty: an action of a chunk."""
    failsafe: str = ""
    """Fail-safe state of the robot; empty: not known."""
    paused: bool = False
    person: bool = False
    """A person had been called, or had said something in this period."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """Of one robot, from its start to the next."""

    robot: str
    number: int
    """Counted by the robot from 1."""
    task: str
    action_names: tuple[str, ...]
    rate_hz: float
    """Declared control rate: frames per second."""
    frames: Sequence[Frame]
    success: bool | None = None
    """None: nobody said."""


class Camera(NamedTuple):
    name: str
    height_px: int
    width_px: int


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is the same in every frame of a data set."""

    action_names: tuple[str, ...]
    state_size: int
    cameras: tuple[Camera, ...]
    """By name."""
    rate_hz: float

    def __str__(self) -> str:
        cameras = ", ".join(f"{one.name} {one.width_px}x{one.height_px}" for one in self.cameras) or "none"
        names = ", ".join(self.action_names)
        return f"actions ({names}), {self.state_size} state values, cameras: {cameras}, {self.rate_hz:g} Hz"


OTHER_TASK, NO_SUCCESS = "of another task", "without success"
NOT_ASKED_FOR = (OTHER_TASK, NO_SUCCESS)
"""Reasons why an episode is left out that the user gave."""


@dataclass
class Skipped:
    """What a recording holds, and a data set made of it does not."""

    frames: Counter[str] = field(default_factory=Counter)
    """Why -> how many."""
    episodes: Counter[str] = field(default_factory=Counter)
    resampled: Counter[str] = field(default_factory=Counter)
    """Frames that keep the clock where commands came at another pace than the declared one."""

    @property
    def left_out(self) -> Counter[str]:
        """Episodes that are not in the data set although the user asked for them: why -> how many."""
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
    """Without those of the same robot that do not fit in one data set with `first`: somebody changed its parameters meanwhile.

    Raises: `ConfigurationError` at the first of another robot that does not.
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
