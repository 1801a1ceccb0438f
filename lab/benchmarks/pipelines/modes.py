"""Execution modes of one robot's requests (AURAS §6.1): their names, and the times of their answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from ros2_rfm_serving.profiles.tuner import Timing, pipeline_name
from ros2_rfm_serving.types import PipelineConfig
from ros2_rfm_serving.worlds import flights
from ros2_rfm_serving.worlds.flights import Flight

_NONE = PipelineConfig()


class Kind(Enum):
    SEQ = "SEQ"
    """Sequential: perception, all steps, answer; then the newest observation."""
    DEC = "DEC"
    """Decoupled: perception has a thread of its own; a generation begins with the newest context."""
    PAR = "PAR"
    """Parallel: workers with a thread and a whole request each."""
    AURAS = "AURAS"
    """Frames: all requests in flight in one batch, on the newest context."""


@dataclass(frozen=True, kw_only=True)
class Mode:
    kind: Kind
    workers: int = 1
    """Workers of PAR."""
    pipelining: PipelineConfig = _NONE
    """Pipelining of AURAS."""

    def __str__(self) -> str:
        if self.kind is Kind.PAR:
            return f"PAR {self.workers}"
        if self.kind is not Kind.AURAS:
            return str(self.kind.value)
        return pipeline_name(self.pipelining)

    @property
    def in_flight(self) -> int:
        return {Kind.PAR: self.workers, Kind.AURAS: self.pipelining.depth, Kind.DEC: 2}.get(self.kind, 1)


SEQ, DEC = Mode(kind=Kind.SEQ), Mode(kind=Kind.DEC)


def par(workers: int) -> Mode:
    return Mode(kind=Kind.PAR, workers=workers)


def auras(pp_generation: int, pp_perception: int = 1, alpha: float = 0.0, fetch_offset: int = 0) -> Mode:
    pipelining = PipelineConfig(pp_generation=pp_generation, pp_perception=pp_perception, alpha=alpha, fetch_offset=fetch_offset)
    return Mode(kind=Kind.AURAS, pipelining=pipelining)


def flights_of(mode: Mode, timing: Timing, num_steps: int, step_s: float) -> Iterator[Flight]:
    """Return the schedule of requests of a mode. step_s: one control step."""
    interval, latency, perception = (seconds / step_s for seconds in (timing.interval_s, timing.latency_s, timing.perception_s))
    if mode.kind is Kind.SEQ:
        return flights.sequential(num_steps, interval)
    if mode.kind is Kind.DEC:
        return flights.decoupled(num_steps, perception, interval)
    if mode.kind is Kind.PAR:
        return flights.parallel(num_steps, interval, latency)
    return flights.pipelined(num_steps, mode.pipelining, interval)
