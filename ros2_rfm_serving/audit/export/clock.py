"""Clock of a data set: frame k of an episode is k / rate seconds after its first one, at the robot's declared control rate.

LeRobot derives the times of frames from that rate (`timestamp = frame_index / fps`; 0.4.4 and 0.6.1, `LeRobotDataset.add_frame`),
so a policy would learn an episode whose commands came at another pace too fast or too slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.audit.export.frames import Frame
from ros2_rfm_serving.errors import ConfigurationError

TOLERANCE = 0.01
"""Largest relative difference of clocks that count as equal."""
PAUSE_S, PAUSE_STEPS = 0.5, 2.5
"""Smallest distances of commands that do not belong to one motion, in s and in steps, which are periods of the rate, or the
episode's median if that is longer; both must be exceeded. No frames are inserted between such commands."""
FEWEST_STEPS = 4
"""Smallest number of steps of which an episode has a usual one."""
SLOWEST_PERIODS = 10
"""Largest usual distance of commands in periods; beyond it they follow no such clock, and resampling would multiply them."""


class OnClock(NamedTuple):
    """Frames at the declared rate, with counts of the changes."""

    frames: list[Frame]
    num_repeated: int
    """Number of control periods beyond those that were commanded."""
    num_dropped: int
    """Number of commands that came faster than the rate."""


def on_clock(frames: Sequence[Frame], rate_hz: float, is_delta: Sequence[bool] = ()) -> OnClock:
    """Return the frames, resampled by the nearest command in time wherever their own times differ from the rate.

    is_delta: [A] columns that hold displacements; empty without any. No displacement is repeated or lost.
    """
    chosen: list[int] = []
    times_s = np.array([frame.t_s for frame in frames])
    steps_s = np.diff(times_s)
    step_s = max(1.0 / rate_hz, _usual(steps_s))
    cuts = np.flatnonzero(steps_s > max(PAUSE_S, PAUSE_STEPS * step_s)) + 1
    for motion in np.split(np.arange(len(frames)), cuts):
        chosen += [int(motion[0]) + index for index in _indices(times_s[motion], rate_hz)]
    counts = np.bincount(chosen, minlength=len(frames)) if chosen else np.zeros(len(frames), int)
    return OnClock(
        frames=_with_displacements(frames, chosen, np.asarray(is_delta, bool)),
        num_repeated=int((counts - 1).clip(min=0).sum()),
        num_dropped=int((counts == 0).sum()),
    )


def is_too_slow(frames: Sequence[Frame], rate_hz: float) -> bool:
    """Return whether the commands follow no clock of this rate."""
    return _usual(np.diff([frame.t_s for frame in frames])) > SLOWEST_PERIODS / rate_hz


def _usual(steps_s: npt.NDArray[np.float64]) -> float:
    """Return the median; 0 if there are too few steps."""
    return float(np.median(steps_s)) if len(steps_s) >= FEWEST_STEPS else 0.0


def _with_displacements(frames: Sequence[Frame], chosen: Sequence[int], is_delta: npt.NDArray[np.bool_]) -> list[Frame]:
    """Return the chosen frames, each with the displacements of all commands since the chosen one before it."""
    if not is_delta.any() or list(chosen) == list(range(len(frames))):
        return [frames[index] for index in chosen]
    ends = [*chosen[:-1], len(frames) - 1]
    made: list[Frame] = []
    for index, since, until in zip(chosen, [-1, *ends[:-1]], ends, strict=True):
        moved = sum((frames[each].action for each in range(since + 1, until + 1)), np.zeros_like(frames[index].action))
        made.append(replace(frames[index], action=np.where(is_delta, moved, frames[index].action)))
    return made


def _indices(times_s: npt.NDArray[np.float64], rate_hz: float) -> list[int]:
    """Return the index of the command of one motion for each period of the data set."""
    if not len(times_s):
        return []
    elapsed_s = times_s - times_s[0]
    late_s = elapsed_s - np.arange(len(times_s)) / rate_hz
    if (np.abs(late_s) <= np.maximum(0.5 / rate_hz, TOLERANCE * elapsed_s)).all():
        return list(range(len(times_s)))
    periods_s = np.arange(round(elapsed_s[-1] * rate_hz) + 1) / rate_hz
    between_s = (elapsed_s[1:] + elapsed_s[:-1]) / 2
    return [int(index) for index in np.searchsorted(between_s, periods_s)]


def frames_per_second(rate_hz: float, *, videos: bool) -> float:
    """Return `fps` for LeRobot's `info.json`: a whole number wherever the rate is one.

    Videos need whole rates (0.4.4 and 0.6.1: `av` accepts no others), which may be off by `TOLERANCE`.

    Raises: `ConfigurationError` when no whole rate is close enough for videos.
    """
    whole = max(1, round(rate_hz))
    off = abs(whole / rate_hz - 1)
    if off < 1e-9 or (videos and off <= TOLERANCE):
        return whole
    if videos:
        problem = (
            f"the control rate is {rate_hz:g} Hz, and videos have whole rates: at {whole} Hz their clock would be {off:.0%} off"
        )
        raise ConfigurationError(problem, key="--videos", fix="leave --videos out: images keep any rate")
    return rate_hz
