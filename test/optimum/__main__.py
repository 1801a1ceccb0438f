"""`make optimum`: `best` against the exact optimum of random factories of eight GPUs. Ends with 1 where it has less than 99 %."""

from __future__ import annotations

import argparse
import math
import time
from statistics import median

from ros2_rfm_serving.scheduler import Solution, plan_factory
from test.optimum.exact import optimum
from test.optimum.factories import eight_gpus

ENOUGH = 0.99


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--factories", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    options = parser.parse_args()
    reached: dict[int, float] = {}
    gaps, plan_s, wrong = [], [], []
    for seed in range(options.first, options.first + options.factories):
        small = eight_gpus(seed)
        started_s = time.process_time()
        solution = plan_factory(small.factory, small.profile, explained=False)
        plan_s.append(time.process_time() - started_s)
        best = optimum(small)
        if best <= 0:
            wrong += [f"factory {seed}: feasible, where nothing is"] if solution.feasible and not _shares(solution) else []
            continue
        reached[seed] = solution.objective / best
        gaps.append(solution.gap)
        if solution.bound < best * (1 - 1e-4):
            wrong.append(f"factory {seed}: a bound of {solution.bound:.4f}, below the optimum of {best:.4f}")
        if reached[seed] < ENOUGH:
            wrong.append(f"factory {seed}: {solution.objective:.4f} of {best:.4f}, {100 * reached[seed]:.2f} %")
    shares = sorted(reached.values())
    print(f"{options.factories} factories of eight GPUs, {len(reached)} of them feasible")
    print(f"share of the optimum: least {100 * shares[0]:.2f} %, median {100 * median(shares):.2f} %")
    print(f"at the optimum within 0.1 %: {sum(s > 0.999 for s in shares)}; gap to the bound: median {100 * median(gaps):.2f} %")
    print(f"planning: median {median(plan_s):.2f} s of one core, {max(plan_s):.2f} at most")
    print("\n".join(wrong) or f"none is below {100 * ENOUGH:.0f} %")
    return 1 if wrong or not math.isfinite(shares[0]) else 0


def _shares(solution: Solution) -> bool:
    """Models that share a GPU: no schedule that the optimum is of."""
    return any(server.gpu for server in solution.servers)


raise SystemExit(main())
