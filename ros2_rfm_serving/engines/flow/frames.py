"""Pipelined sessions in frames: how solver steps and perception are spread over stages, and who may go on how far (AURAS §4.3).

A frame of a session begins with each of its observations. A request is perceived in its first `pp_perception` frames, after which
its observation is in the session's public context, and generated in the next `pp_generation`; so one request is answered per frame
once `depth` are in flight. A frame that comes early adds to what is left of the one before. Pure: numbers of rows, no tensors.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations, pairwise
from typing import NamedTuple

from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import Pipelining, RequestId


def steps_of_stages(num_steps: int, pipelining: Pipelining) -> tuple[int, ...]:
    """Solver steps of each generation stage: shares of e^(i alpha), rounded so that they add up; at least one each (§4.3.2).

    Raises: `ModelError` when there are more stages than steps.
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


def require_spread(num_steps: int, pipelining: Pipelining) -> None:
    """Raises: `ModelError` for a pipeline that these steps, or any, cannot have."""
    steps_of_stages(num_steps, pipelining)
    if pipelining.problem:
        raise ModelError(pipelining.problem)


def blocks_of_stages(costs: Sequence[float], stages: int) -> tuple[range, ...]:
    """Blocks of each perception stage, in order; the most expensive stage is as cheap as it can be (§4.3.2).

    Raises: `ModelError` when there are more stages than blocks.
    """
    if not 1 <= stages <= len(costs):
        raise ModelError(f"pp_perception is {stages}; the model's perception has {len(costs)} blocks to spread over frames")
    cuts = ((0, *inner, len(costs)) for inner in combinations(range(1, len(costs)), stages - 1))
    splits = [[range(start, end) for start, end in pairwise(ends)] for ends in cuts]
    return tuple(min(splits, key=lambda split: max(sum(costs[i] for i in blocks) for blocks in split)))


class SessionKey(NamedTuple):
    """Requests of a session that share a public context: those of one episode."""

    robot: str
    component: str
    epoch: int
    episode: int


def session_of(id: RequestId) -> SessionKey:
    return SessionKey(id.robot, id.component, id.session_epoch, id.episode)


@dataclass
class _Session:
    pipelining: Pipelining
    granted: tuple[int, ...]
    """Solver steps that a request may have done by the end of each of its frames."""
    frames: dict[int, int] = field(default_factory=dict)
    """Of each row in flight: frames that began after its own."""

    def limit(self, row: int) -> int:
        return self.granted[min(self.frames[row], len(self.granted) - 1)]


class Frames:
    """Rows of pipelined sessions that are in flight."""

    def __init__(self) -> None:
        self._sessions: dict[SessionKey, _Session] = {}
        self._session_of: dict[int, SessionKey] = {}

    def __contains__(self, row: int) -> bool:
        return row in self._session_of

    def __len__(self) -> int:
        return len(self._session_of)

    @property
    def sessions(self) -> Collection[SessionKey]:
        """Of which rows are in flight."""
        return self._sessions.keys()

    def begin(self, row: int, session: SessionKey, pipelining: Pipelining, num_steps: int) -> list[int]:
        """A frame begins with this row. Those of its robot's former episodes and epochs, which get no more frames; this row itself
        where it is late.

        Raises: `ModelError` for what cannot be spread so.
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
        """Rows that read its public context."""
        known = self._sessions[session]
        return [row for row in known.frames if known.limit(row)]

    def session_of(self, row: int) -> SessionKey:
        return self._session_of[row]

    def limit(self, row: int) -> int:
        """Solver steps that it may have done by the end of the frame."""
        return self._sessions[self._session_of[row]].limit(row)

    def leave(self, row: int) -> SessionKey | None:
        """Its session if this was the last of its rows in flight."""
        session = self._session_of.pop(row)
        del self._sessions[session].frames[row]
        if self._sessions[session].frames:
            return None
        del self._sessions[session]
        return session
