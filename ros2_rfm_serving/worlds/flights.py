"""Times at which requests observe, compute and are answered, by execution mode (AURAS §6.1), in control steps. Pure.

A mode is the sequence of its requests. Their durations are measured elsewhere and given here, so that many worlds run in lockstep
and every observation is still as old as it would be in reality.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from ros2_rfm_serving.engines.flow.frames import steps_of_stages
from ros2_rfm_serving.types import PipelineConfig


@dataclass(frozen=True)
class Stage:
    """Solver steps in a row that read one context."""

    num_steps: int
    observed_at: float
    """Time of the context's observation, in control steps."""


@dataclass(frozen=True)
class Flight:
    """One request, from observation to answer."""

    stages: tuple[Stage, ...]
    answered_at: float

    @property
    def ended_with_at(self) -> float:
        """Time of the observation that the last steps read: step 0 of the chunk belongs to that time."""
        return self.stages[-1].observed_at


def sequential(num_steps: int, latency: float) -> Iterator[Flight]:
    """Yield the requests of SEQ: perception, all solver steps, answer; then the newest observation."""
    for number in count():
        yield Flight((Stage(num_steps, number * latency),), (number + 1) * latency)


def decoupled(num_steps: int, perception: float, generation: float) -> Iterator[Flight]:
    """Yield the requests of DEC: perception runs continuously; a generation reads the newest context that exists when it begins."""
    for number in count():
        begins_at = perception + number * generation
        perceived = int((begins_at + 1e-9) / perception) - 1
        yield Flight((Stage(num_steps, perceived * perception),), begins_at + generation)


def parallel(num_steps: int, interval: float, latency: float) -> Iterator[Flight]:
    """Yield the requests of PAR: each worker processes one whole request, and one of them starts every `interval`."""
    for number in count():
        yield Flight((Stage(num_steps, number * interval),), number * interval + latency)


def pipelined(num_steps: int, pipelining: PipelineConfig, frame: float) -> Iterator[Flight]:
    """Yield the requests of AURAS: request n enters with frame n, and stage i reads the public context of its time.

    The frame after its last one begins when it is answered.
    """
    spread = steps_of_stages(num_steps, pipelining)
    for number in count():
        seen = number + 1 + pipelining.fetch_offset  # of the first stage; there are as many observations as frames
        stages = tuple(Stage(steps, max(0, seen + i) * frame) for i, steps in enumerate(spread))
        yield Flight(stages, (number + pipelining.depth) * frame)
