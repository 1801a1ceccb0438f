"""`make optimum`: `best` as it plans by default, against ROSA with all the work that it wants. Ends with 1 where ROSA is above."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ros2_rfm_serving.scheduler import plan_factory
from ros2_rfm_serving.simulation.random_factories import Size, random_factory

SIZE = Size(servers=8, robots=64, classes=4, models=3)
ROUNDING = 1e-6


@dataclass(frozen=True)
class Match:
    """One factory."""

    seed: int
    served: bool
    """Within every SLO."""
    best: float
    rosa: float
    gap: float
    work: float
    plan_s: float
    """Of one core."""

    @property
    def lost(self) -> bool:
        return self.best < self.rosa * (1 - ROUNDING)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--factories", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    options = parser.parse_args()
    matches = []
    for seed in range(options.first, options.first + options.factories):
        matches.append(_match(seed))
        if not matches[-1].served:
            print(f"factory {seed}: not served", flush=True)
        if matches[-1].lost:
            print(f"factory {seed}: {matches[-1].best:.3f}, ROSA has {matches[-1].rosa:.3f}", flush=True)
    print(f"{options.factories} factories of {SIZE}, {sum(m.served for m in matches)} of them served")
    print(f"ROSA with all the work that it wants: {_spread([m.rosa / m.best for m in matches if m.best], '.3f')} of `best`")
    print(f"gap: {_spread([100 * m.gap for m in matches], '.1f')} %; work: {_spread([m.work for m in matches], '.2f')}")
    print(f"planning: {_spread([m.plan_s for m in matches], '.2f')} s of one core, under 1 s: {sum(m.plan_s < 1 for m in matches)}")
    return int(any(match.lost for match in matches))


def _match(seed: int) -> Match:
    case = random_factory(SIZE, seed)
    started_s = time.process_time()
    best = plan_factory(case.factory, case.profile, explained=False)
    plan_s = time.process_time() - started_s
    rosa = plan_factory(case.factory, case.profile, policy="rosa", work=math.inf, explained=False)
    return Match(seed, best.feasible, best.objective, rosa.objective, best.gap_by_curves, best.work, plan_s)


def _spread(values: Sequence[float], form: str) -> str:
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


if __name__ == "__main__":
    raise SystemExit(main())
