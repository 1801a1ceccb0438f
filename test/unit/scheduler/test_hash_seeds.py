"""A plan does not depend on the order that sets happen to have in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PLANS = """
import json
from pathlib import Path
from ros2_rfm_serving.factory import Catalogue
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.scheduler import plan_factory
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.simulation.random_factories import Size, random_factory
from test.unit.scheduler.test_shared_gpus import OTHER, factory

drawn = random_factory(Size(servers=4, robots=24, classes=3, models=3), 16)
folder = shipped("config", "profiles")
profile, catalogue = load_profiles(folder), Catalogue.load(folder / "models.yaml")
for plan in (
    plan_factory(drawn.factory, drawn.profile, explained=False),
    plan_factory(factory(3, 3, more=OTHER), profile, catalogue, explained=False),
):
    print(json.dumps(plan.to_json()))
"""


@pytest.mark.patient
def test_plans_are_the_same_to_the_byte_whatever_strings_hash_to() -> None:
    found = [
        subprocess.run(
            [sys.executable, "-c", PLANS], capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": str(seed)}
        ).stdout
        for seed in (0, 1, 4242)
    ]
    assert found[0] == found[1] == found[2]
    assert all(json.loads(plan)["feasible"] for plan in found[0].splitlines()) and found[0].count(b"\n") == 2
