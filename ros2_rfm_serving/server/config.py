"""What a server is told about itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ros2_rfm_serving.dispatch import StepCosts
from ros2_rfm_serving.server.sessions import SessionRules


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    name: str
    batch_size: int = 1
    max_concurrent: int = 1
    """Works in progress at once. More than one when the engine batches continuously: then each is one request."""
    max_sessions: int = 8
    sessions: SessionRules = field(default_factory=SessionRules)
    dispatch: str = "fifo"
    """Policy that chooses among those who wait, by name (`dispatch/`)."""
    batching: str = "fixed"
    """How many run together: `fixed`: whatever fits; `saturation`: as many as improve throughput; `wait`: that, and for one more
    it waits where that is sure to pay."""
    refetch_after_s: float = math.inf
    """A newer observation is asked for in place of one that will be older than this when its batch begins; inf: never."""
    profile_s: tuple[float, ...] = ()
    """Seconds of a batch of 1, 2, ... rows, to begin with; they are measured in any case."""
    costs: StepCosts = field(default_factory=StepCosts)
    """With `continuous`: what its engine took before it served (`rehearsal.py`); empty: it learns that while it serves."""
    max_engine_errors: int = 0
    """Batches without an answer in a row after which the engine is given up, unless it answers a blank request; 0: never."""
    num_updates: int | None = None
    """Solver steps of whose updates the engine tells, for horizon policies; None: not known, or a server elsewhere decides."""
    first_epoch: int = 1
    """Of sessions; drawn at random by a live server, so that a restarted one never repeats an epoch."""
    window_s: float = 5.0
    """Of rates, latencies and load in the status."""
