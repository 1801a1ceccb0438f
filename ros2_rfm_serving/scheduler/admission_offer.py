"""Feasible assignment for an admission: the search by queue evaluations may take a second, applying it is quick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class AdmissionOffer:
    """Feasible assignment in one fleet, and in no other. It is plain data, so that another process may search for it."""

    seats: Mapping[int, str]
    """Index of a demand of the new robot -> its server."""
    cap_hz: float
    rate_hz: float
    """Highest and expected actions/s."""
    looks: int
    """Queue evaluations that were allowed; another number may give another assignment."""
    strained: frozenset[str] = frozenset()
    """Servers whose queues were evaluated and keep every SLO with the robot."""
    batch_sizes: Mapping[str, int] = field(default_factory=dict)
    """Server -> its batch size with the new robot, where others are adjusted."""
    rates_hz: Mapping[str, float] = field(default_factory=dict)
    """Task -> action rate of each of its robots, where others are adjusted; empty: no other robot changes."""
