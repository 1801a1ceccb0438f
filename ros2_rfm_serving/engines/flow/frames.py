"""Frames of pipelined sessions: denoising steps and perception are spread over stages (AURAS §4.3).

Each observation begins a frame of its session. A request is perceived in its first `pp_perception` frames, after which its
observation is in the session's public context, and generated in the next `pp_generation` frames. So one request is answered per
frame once `depth` are in flight. A frame that comes early adds its steps to the remaining steps of the frame before. This module is
pure: it handles row numbers, not tensors.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations, pairwise
from typing import NamedTuple

from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import PipelineConfig, RequestId


def steps_of_stages(num_steps: int, pipelining: PipelineConfig) -> tuple[int, ...]:
    """Return the denoising steps of each generation stage (AURAS §4.3.2).

    Stage i gets a share proportional to e^(i alpha). Shares are rounded so that they add up, and are at least one step.
    Raises: `ModelError` if there are more stages than steps.
    """
    stages = pipelining.pp_generation
    if not 1 <= stages <= num_steps:
        raise ModelError(f"pp_generation is {stages}; each of its frames needs one of the model's {num_steps} solver steps")
    weights = [math.exp(pipelining.alpha * (stage - stages)) for stage in range(1, stages + 1)]
    ends = [0]
    for stage, share in enumerate(accumulate(weights), start=1):
        wanted = round(num_steps * share / sum(weights))
        ends.append(min(max(wanted, ends[-1] + 1), num_steps - (stages - stage)))
    return tuple(end - start for start, end in pairwise(ends))


def require_spread(num_steps: int, pipelining: PipelineConfig) -> None:
    """Check that denoising steps can be spread over the stages of a pipeline.
    Raises: `ModelError` for a pipeline that is impossible with this number of steps, or with any."""
    steps_of_stages(num_steps, pipelining)
    if pipelining.problem:
        raise ModelError(pipelining.problem)


def blocks_of_stages(costs: Sequence[float], stages: int) -> tuple[range, ...]:
    """Return the blocks of each perception stage, in order.

    The most expensive stage is as cheap as possible (AURAS §4.3.2). Raises: `ModelError` if there are more stages than blocks.
    """
    if not 1 <= stages <= len(costs):
        raise ModelError(f"pp_perception is {stages}; the model's perception has {len(costs)} blocks to spread over frames")
    cuts = ((0, *inner, len(costs)) for inner in combinations(range(1, len(costs)), stages - 1))
    splits = [[range(start, end) for start, end in pairwise(ends)] for ends in cuts]
    return tuple(min(splits, key=lambda split: max(sum(costs[i] for i in blocks) for blocks in split)))


class SessionKey(NamedTuple):
    """Identity of the requests that share a public context: those of one session in one episode."""

    robot: str
    component: str
    epoch: int
    episode: int


def session_of(id: RequestId) -> SessionKey:
    return SessionKey(id.robot, id.component, id.session_epoch, id.episode)


@dataclass
class _Session:
    pipelining: PipelineConfig
    granted: tuple[int, ...]
    """Denoising steps that a request may have completed by the end of each of its frames."""
    frames: dict[int, int] = field(default_factory=dict)
    """Number of frames that began after its own, by row in flight."""

    def limit(self, row: int) -> int:
        return self.granted[min(self.frames[row], len(self.granted) - 1)]


class FrameRows:
    """Rows in flight of pipelined sessions."""

    def __init__(self) -> None:
        self._sessions: dict[SessionKey, _Session] = {}
        self._session_of: dict[int, SessionKey] = {}

    def __contains__(self, row: int) -> bool:
        return row in self._session_of

    def __len__(self) -> int:
        return len(self._session_of)

    @property
    def sessions(self) -> Collection[SessionKey]:
        """Sessions that have rows in flight."""
        return self._sessions.keys()

    def begin(self, row: int, session: SessionKey, pipelining: PipelineConfig, num_steps: int) -> list[int]:
        """Begin a frame with this row, and return the outdated rows, which get no more frames.

        Rows of the robot's earlier episodes and epochs are outdated; so is this row itself if it is late. Raises: `ModelError` if
        the steps cannot be spread over the stages.
        """
        if session not in self._sessions:
            spread = steps_of_stages(num_steps, pipelining)
            self._sessions[session] = _Session(pipelining, (*[0] * pipelining.pp_perception, *accumulate(spread)))
        frames = self._sessions[session].frames
        for other in frames:
            frames[other] += 1
        frames[row] = 0
        self._session_of[row] = session
        own = [key for key in self._sessions if key[:2] == session[:2]]
        return [row for key in own if key != max(own) for row in self._sessions[key].frames]

    def generating(self, session: SessionKey) -> list[int]:
        """Return the rows that read the session's public context."""
        known = self._sessions[session]
        return [row for row in known.frames if known.limit(row)]

    def session_of(self, row: int) -> SessionKey:
        return self._session_of[row]

    def limit(self, row: int) -> int:
        """Return the denoising steps that a row may have completed by the end of the frame."""
        return self._sessions[self._session_of[row]].limit(row)

    def leave(self, row: int) -> SessionKey | None:
        """Remove a row, and return its session if this was the session's last row in flight, else None."""
        session = self._session_of.pop(row)
        del self._sessions[session].frames[row]
        if self._sessions[session].frames:
            return None
        del self._sessions[session]
        return session
