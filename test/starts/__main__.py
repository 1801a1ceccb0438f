"""`python -m test.starts 0 150 [--to FILE]`: plans factories with continuous batching and simulates each plan from eight starts."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

import yaml

from ros2_rfm_serving.factory import Catalogue, parse_factory
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.scheduler import plan_factory, to_schedule

from .attainment import missed
from .factories import factory

SHIPPED = Path(__file__).resolve().parents[2] / "config" / "profiles"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("--to", type=Path)
    chosen = parser.parse_args()
    profile, catalogue = load_profiles(SHIPPED), Catalogue.load(SHIPPED / "models.yaml")
    counts: Counter[str] = Counter()
    for seed in range(chosen.first, chosen.end):
        began_s = time.process_time()
        declared = parse_factory(yaml.safe_dump(factory(seed), sort_keys=False))
        plan = plan_factory(declared, profile, catalogue, explained=False)
        planned_s = time.process_time() - began_s
        if not (plan.feasible and plan.servers):
            counts["infeasible"] += 1
            lines = [f"{seed} infeasible: {'; '.join(plan.problems)[:160]}"]
        else:
            found = list(missed(declared, to_schedule(plan, declared.robots, epoch=1), catalogue, profile))
            counts["kept" if not found else "missed"] += 1
            lines = [f"{seed} MISSED {one}" for one in found] or [f"{seed} kept"]
        print(*lines, f"# {seed}: {planned_s:.1f} s to plan, {time.process_time() - began_s:.1f} s in all", sep="\n", flush=True)
        if chosen.to:
            with chosen.to.open("a") as file:
                file.writelines(f"{line}\n" for line in lines)
    print(f"factories {chosen.first} to {chosen.end - 1}: {dict(counts)}")
    return 1 if counts["missed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
