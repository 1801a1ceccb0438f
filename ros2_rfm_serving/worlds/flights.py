"""When requests observe, think and are answered, by execution mode (AURAS §6.1), in control steps. Pure.

A mode is the sequence of its flights. The times that it takes are measured elsewhere and given here, so that worlds can be run in
lockstep, many at once, and yet every observation is as old as it would be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from ros2_rfm_serving.engines.flow.frames import steps_of_stages
from ros2_rfm_serving.types import Pipelining


@dataclass(frozen=True)
class Stage:
    """Solver steps in a row that read one context."""

    num_steps: int
    observed_at: float
    """Of the context, control steps."""


@dataclass(frozen=True)
class Flight:
    """One request, from observation to answer."""

    stages: tuple[Stage, ...]
    answered_at: float

    @property
    def ended_with_at(self) -> float:
        """When the observation was made that the last steps saw: row 0 of the chunk is of that time."""
        return self.stages[-1].observed_at


def sequential(num_steps: int, latency: float) -> Iterator[Flight]:
    """SEQ: perception, all solver steps, answer; then the newest observation."""
    for number in count():
        yield Flight((Stage(num_steps, number * latency),), (number + 1) * latency)


def decoupled(num_steps: int, perception: float, generation: float) -> Iterator[Flight]:
    """DEC: perception runs all the time; a generation reads the newest context that is there when it begins."""
    for number in count():
        begins_at = perception + number * generation
        perceived = int((begins_at + 1e-9) / perception) - 1
        yield Flight((Stage(num_steps, perceived * perception),), begins_at + generation)


def parallel(num_steps: int, interval: float, latency: float) -> Iterator[Flight]:
    """PAR: workers take one whole request each, one of them every `interval`."""
    for number in count():
        yield Flight((Stage(num_steps, number * interval),), number * interval + latency)


def pipelined(num_steps: int, pipelining: Pipelining, frame: float) -> Iterator[Flight]:
    """AURAS: request n enters with frame n; stage i reads what is in the public context then, and the frame after its last one
    begins when it is answered."""
    spread = steps_of_stages(num_steps, pipelining)
    for number in count():
        seen = number + 1 + pipelining.fetch_offset  # of the first stage; observations are as many as frames
        stages = tuple(Stage(steps, max(0, seen + i) * frame) for i, steps in enumerate(spread))
        yield Flight(stages, (number + pipelining.depth) * frame)
