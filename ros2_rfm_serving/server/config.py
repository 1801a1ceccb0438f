"""Configuration of one model server."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ros2_rfm_serving.dispatch import StepCosts
from ros2_rfm_serving.server.sessions import SessionRules


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Configuration of a server."""

    name: str
    batch_size: int = 1
    max_concurrent: int = 1
    """Works in progress at once. A value above one is for an engine that batches continuously: each work is one request."""
    max_sessions: int = 8
    sessions: SessionRules = field(default_factory=SessionRules)
    dispatch: str = "fifo"
    """Name of the policy that orders the waiting requests (`dispatch/`)."""
    batching: str = "fixed"
    """Rule for the number of requests that run together. `fixed`: all that fit; `saturation`: as many as improve throughput;
    `wait`: as `saturation`, with a delay for one more where that is certain to pay; `continuous`: rows join and leave one by
    one."""
    refetch_after_s: float = math.inf
    """Age at the beginning of its batch above which a newer observation is requested from the robot; inf: never."""
    profile_s: tuple[float, ...] = ()
    """Initial seconds of a batch of 1, 2, ... rows; they are measured in any case."""
    costs: StepCosts = field(default_factory=StepCosts)
    """Costs of the engine for `continuous`, measured before it serves (`rehearsal.py`); empty: they are learned while it serves."""
    max_engine_errors: int = 0
    """Batches in a row without an answer after which the engine is given up, unless it answers a blank request; 0: never."""
    num_updates: int | None = None
    """Number of solver steps whose updates the engine reports, for horizon policies; None: unknown, or a remote server decides."""
    first_epoch: int = 1
    """First session epoch. A live server draws it at random, so that a restarted one never repeats an epoch."""
    window_s: float = 5.0
    """Window of rates, latencies and load in the status."""
