"""Random factories of eight GPUs whose best schedule can be found exactly: System 1 and whatever runs at a rate of its own.

System 2 is left out: it ties the servers of a robot together, and their loads could no longer be looked at one by one.
"""

from __future__ import annotations

import random

from ros2_rfm_serving.factory import parse_factory
from test.unit.scheduler.small_factories import SmallFactory, profile_rows, task_section

SERVERS = 8
MOST_ROBOTS = 18


def eight_gpus(seed: int) -> SmallFactory:
    """Of up to 2 types; 1 to 3 classes with up to 18 robots together, 1 to 3 models, random profiles."""
    rng = random.Random(seed)
    models = [f"m{i}" for i in range(rng.randint(1, 3))]
    fast = rng.choice([SERVERS, SERVERS, rng.randint(1, SERVERS - 1)])
    cluster = [{"num_servers": n, "gpu_type": gpu} for n, gpu in ((fast, "A"), (SERVERS - fast, "B")) if n]
    classes = rng.randint(1, 3)
    fleet = [{"task": f"t{i}", "num_robots": rng.randint(2, MOST_ROBOTS // classes)} for i in range(classes)]
    rows = [row for model in models for group in cluster for row in profile_rows(rng, model, str(group["gpu_type"]))]
    text = f"server_cluster: {cluster}\nplanning: {{objective: throughput}}\nrobot_fleet: {fleet}\n"
    for i in range(classes):
        text += f"t{i}: {task_section(rng, models, planner=False)}\n"
    return SmallFactory(parse_factory(text.replace("'", '"')), tuple(rows))
