"""What befalls a factory, when, and whom: drawn from a seed, so that the same seed gives the same faults."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

QUIET_S = 30.0
"""At both ends: a factory that has just begun, or is about to end, says nothing of what befalls it."""
LEAST_APART_S, MOST_APART_S = 8.0, 20.0
REST_S = 60.0
"""Before the same process is killed again: its supervisor gives up one that ends again and again."""
CUT_S, SLOW_S, FULL_S = (2.0, 8.0), (0.5, 4.0), (5.0, 15.0)
CLOCK_S = 3600.0
KILL, SLOW, CUT, CLOCK, DISK = KINDS = ("kill", "slow", "cut", "clock", "disk")


class Fault(NamedTuple):
    at_s: float
    """From the time at which all robots are at work."""
    kind: str
    whom: str
    """Process, or robot; empty: the machine."""
    lasts_s: float = 0.0
    by_s: float = 0.0
    """That the wall clock is off from then on."""


def drawn(seconds: float, seed: int, processes: Sequence[str], robots: Sequence[str]) -> list[Fault]:
    """In their order. Cuts are robots' own, by their parameter `faults`: two of one robot do not overlap."""
    rng, faults, at_s = random.Random(seed), list[Fault](), QUIET_S
    rested = dict.fromkeys(processes, 0.0)
    while at_s < seconds - QUIET_S:
        kind = rng.choice(KINDS)
        if kind == KILL:
            ready = [name for name in processes if rested[name] <= at_s]
            if ready:
                whom = rng.choice(ready)
                rested[whom] = at_s + REST_S
                faults.append(Fault(at_s, kind, whom))
        elif kind == SLOW:
            faults.append(Fault(at_s, kind, rng.choice(processes), rng.uniform(*SLOW_S)))
        elif kind == CUT:
            faults.append(Fault(at_s, kind, rng.choice(robots), rng.uniform(*CUT_S)))
        elif kind == CLOCK:
            faults.append(Fault(at_s, kind, "", by_s=rng.uniform(-CLOCK_S, CLOCK_S)))
        else:
            faults.append(Fault(at_s, kind, "", rng.uniform(*FULL_S)))
        at_s += rng.uniform(LEAST_APART_S, MOST_APART_S) + faults[-1].lasts_s
    return faults


def cuts_of(robot: str, faults: Sequence[Fault], start_s: float) -> str:
    """Its parameter `faults`; start_s: from its node's start until all are at work, about."""
    windows = [
        f"{start_s + one.at_s:.1f}-{start_s + one.at_s + one.lasts_s:.1f}"
        for one in faults
        if one.kind == CUT and one.whom == robot
    ]
    return f"cut={','.join(windows)}" if windows else ""
