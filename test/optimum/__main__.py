"""`make optimum`: `best` against the exact optimum of random factories of eight GPUs. Ends with 1 where it has less than 99 %."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from statistics import median

from ros2_rfm_serving.scheduler import Solution, plan_factory
from test.optimum.exact import GAP, optimum
from test.optimum.factories import eight_gpus

ENOUGH = 0.99
ROUNDING = 2 * GAP
EVERY = 10
"""Factories, after which it says how far it is."""


@dataclass(frozen=True)
class Judged:
    """One factory."""

    seed: int
    objective: float
    bound: float
    optimum: float
    """Or a little more (`exact.GAP`); -inf: there is no schedule."""
    plan_s: float
    """Of one core."""

    @property
    def reached(self) -> float:
        return self.objective / self.optimum

    @property
    def fault(self) -> str:
        """What is wrong with it; empty: nothing."""
        if self.optimum <= 0:
            return "feasible, where nothing is" if self.objective > 0 else ""
        if self.bound < self.optimum * (1 - ROUNDING):
            return f"a bound of {self.bound:.4f}, below the optimum of {self.optimum:.4f}"
        return f"{100 * self.reached:.2f} % of the optimum" if self.reached < ENOUGH else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--factories", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    options = parser.parse_args()
    judged: list[Judged] = []
    for seed in range(options.first, options.first + options.factories):
        judged.append(_judged(seed))
        if (fault := judged[-1].fault) or len(judged) % EVERY == 0:
            print(f"factory {seed}: {fault}" if fault else f"{len(judged)} factories", flush=True)
    feasible = [j for j in judged if j.optimum > 0]
    shares = sorted(j.reached for j in feasible)
    print(f"{options.factories} factories of eight GPUs, {len(feasible)} of them feasible")
    print(f"share of the optimum: least {100 * shares[0]:.2f} %, median {100 * median(shares):.2f} %; ", end="")
    print(f"within 0.1 % of it: {sum(share > 0.999 for share in shares)}")
    print(f"bound above the optimum: median {100 * median(j.bound / j.optimum - 1 for j in feasible):.2f} %")
    print(f"planning: median {median(j.plan_s for j in judged):.2f} s of one core, {max(j.plan_s for j in judged):.2f} at most")
    return int(any(j.fault for j in judged))


def _judged(seed: int) -> Judged:
    small = eight_gpus(seed)
    started_s = time.process_time()
    solution = plan_factory(small.factory, small.profile, explained=False)
    plan_s = time.process_time() - started_s
    objective = 0.0 if _shares(solution) else solution.objective
    return Judged(seed, objective, solution.bound, optimum(small), plan_s)


def _shares(solution: Solution) -> bool:
    """Models that share a GPU: no schedule that the optimum is of."""
    return any(server.gpu for server in solution.servers)


raise SystemExit(main())
