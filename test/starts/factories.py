"""Random factories with continuous batching near capacity. No code of the planner or of other generators is used.

A seed gives the same factory again. Every factory has more robots than its GPUs can serve at full pace, so that the planner's caps
decide how full each server is.
"""

from __future__ import annotations

import random
from typing import Any

Written = dict[str, Any]
"""A descriptor."""
GPU_TYPE = "NVIDIA H200"
ALONE_MS = {"nvidia/GR00T-N1.6-3B": 47.2, "physical-intelligence/pi0.5": 51.8}
"""Action model -> milliseconds of one request alone. The first has 4 solver steps, the second 10."""
TEXT_MS = {"Qwen2.5-VL-7B-Instruct": 450.0, "Qwen2.5-VL-3B-Instruct": 200.0}
DISPATCH = ("balanced", "balanced", "balanced", "fifo", "best", "swift", "deadline")
TIGHTEST, TIGHT = (1.05, 1.5), (1.5, 2.2)
"""SLO of System 1, in services of one request alone. Few plans keep the tightest where rows join one another."""
FULL = (0.7, 3.0)
"""Requests that robots would send at full pace, over what a quick server carries."""
MOST_HZ = 55.0
"""Requests per second that one such server answers in large batches, about."""


def factory(seed: int) -> Written:
    """Return the descriptor of one factory."""
    rng = random.Random(f"starts {seed}")
    servers, num_tasks = rng.choice((1, 1, 2, 2, 3, 4, 6)), rng.randint(1, 4)
    names = [f"job_{letter}" for letter in "abcd"[:num_tasks]]
    shared = rng.random() < 0.2
    models = rng.sample(list(ALONE_MS), 1 if servers == 1 and not shared else rng.randint(1, 2))
    texts = servers >= 3 or shared
    tasks = {name: _task(rng, rng.choice(models), texts=texts) for name in names}
    shares = [rng.uniform(0.3, 1.0) for _ in names]
    pressure = servers * MOST_HZ * rng.uniform(*FULL)
    written: Written = {
        "server_cluster": [
            {"num_servers": servers, "gpu_type": GPU_TYPE, "batching": "continuous", "dispatch": rng.choice(DISPATCH)}
        ],
        "planning": {"objective": rng.choice(("throughput", "proportional", "proportional", "max_min"))},
        "robot_fleet": [],
    }
    for name, share in zip(names, shares, strict=True):
        pace_hz = 1e3 / (tasks[name]["pipeline"]["action_period_ms"] + (60.0 if "execution" not in tasks[name] else 0.0))
        count = max(1, min(48, round(pressure * share / sum(shares) / pace_hz)))
        entry: Written = {"task": name, "num_robots": count}
        if rng.random() < 0.2:
            entry["network"] = {"round_trip_ms": round(rng.uniform(1, 20), 1), "jitter_ms": round(rng.uniform(0.5, 6), 1)}
            for component in tasks[name]["components"].values():
                component["slo_ms"] = round(component["slo_ms"] + entry["network"]["round_trip_ms"] + 24.0, 1)
        written["robot_fleet"].append(entry)
    return {**written, **tasks}


def _task(rng: random.Random, model: str, *, texts: bool) -> Written:
    components: Written = {
        "system1": {
            "model": model,
            "slo_ms": round(ALONE_MS[model] * rng.uniform(*(TIGHTEST if rng.random() < 0.15 else TIGHT)), 1),
        }
    }
    task: Written = {
        "pipeline": {"action_period_ms": rng.choice((50, 80, 100, 150, 200, 250, 300, 400, 500))},
        "components": components,
        "percentile": rng.choice((90, 90, 95, 99)),
    }
    if texts and rng.random() < 0.5:
        for name in rng.sample(("system2", "safety", "monitor"), rng.randint(1, 3)):
            text = rng.choice(list(TEXT_MS))
            components[name] = {"model": text, "slo_ms": round(TEXT_MS[text] * rng.uniform(1.4, 5.0), 1)}
            if name == "system2":
                task["pipeline"]["system2_to_system1_call_ratio"] = rng.choice((0.02, 0.1, 0.25))
            else:
                components[name]["freq_hz"] = round(rng.uniform(0.1, 1.0), 2)
    if rng.random() < 0.4:
        task["execution"] = {"mode": "async"}
        if rng.random() < 0.3:
            task["execution"]["horizon"] = {"policy": "confidence", "min_steps": rng.randint(1, 4)}
    if rng.random() < 0.4:
        task["value"] = round(rng.uniform(0.3, 4.0), 2)
    if rng.random() < 0.15:
        task["min_action_rate_hz"] = round(rng.uniform(0.02, 0.3) * 1e3 / task["pipeline"]["action_period_ms"], 3)
    return task
