"""Random descriptors for properties of plans: 1 to 3 tasks, 1 to 3 GPU types, all ways of batching and executing. A seed gives the
same one again.

They are dictionaries, as a descriptor is written, so that a test may change one thing: the order of groups, names, a number.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from ros2_rfm_serving.factory import Catalogue, Factory, parse_factory
from ros2_rfm_serving.profiles import Profile, load_profiles

Written = dict[str, Any]
"""A descriptor."""
MEASURED = "NVIDIA H200"
PACES = {MEASURED: 1.0, "FAST": 0.7, "SLOW": 1.6}
"""GPU type -> how many times longer everything takes there."""
ACTIONS = {"nvidia/GR00T-N1.6-3B": 47.2, "physical-intelligence/pi0.5": 51.8}
"""Model -> ms of one request alone, on the measured type."""
TEXTS = {"Qwen2.5-VL-7B-Instruct": 450.0, "Qwen2.5-VL-3B-Instruct": 200.0}
RESERVED = ("server_cluster", "robot_fleet", "standby", "planning")


def inputs(repository: Path) -> tuple[Profile, Catalogue]:
    """Profiles and catalogue with the made-up GPU types."""
    folder = repository / "config" / "profiles"
    more = {(MEASURED, name): pace for name, pace in PACES.items() if name != MEASURED}
    catalogue = Catalogue.load(folder / "models.yaml")
    models = {name: entry.model_copy(update={"gpus": _paced(entry.gpus)}) for name, entry in catalogue.models.items()}
    types = {**catalogue.gpu_types, **dict.fromkeys(PACES, catalogue.gpu_types[MEASURED])}
    return load_profiles(folder).paced(more), catalogue.model_copy(update={"models": models, "gpu_types": types})


def _paced(gpus: Mapping[str, Any]) -> dict[str, Any]:
    if (own := gpus.get(MEASURED)) is None:
        return dict(gpus)
    return {**gpus, **{name: own.model_copy(update={"service": _scaled(own.service, pace)}) for name, pace in PACES.items()}}


def _scaled(service: Any, pace: float) -> Any:
    """With every time of a law as many times as long."""
    if service is None:
        return None
    times = {name: pace * value for name, value in service if name.endswith("_ms") and value is not None}
    steps = getattr(service, "steps", None)
    return service.model_copy(update={**times, **({"steps": _scaled(steps, pace)} if steps else {})})


def drawn(
    seed: int,
    *,
    types: int = 3,
    standby: bool = True,
    batching: tuple[str, ...] = ("fixed", "fixed", "wait", "continuous"),
    services: tuple[float, float] = (1.2, 4.0),
) -> Written:
    """types: of GPUs, at the most. standby: a third of them reserves a server or two. services: SLOs of System 1, in times of a
    request alone on the slowest type."""
    rng = random.Random(f"{seed} {types} {standby} {batching} {services}")
    tasks = rng.randint(1, 3)
    gpus = rng.sample(list(PACES), rng.randint(1, types))
    how = rng.choice(batching)
    cluster = [{"num_servers": rng.randint(1, 4), "gpu_type": gpu, "batching": how} for gpu in gpus]
    servers = sum(int(group["num_servers"]) for group in cluster)
    written: Written = {
        "server_cluster": cluster,
        "robot_fleet": [{"task": f"task_{i}", "num_robots": rng.randint(1, max(1, 5 * servers // tasks))} for i in range(tasks)],
    }
    if standby and servers > 2 and rng.random() < 0.35:
        written["standby"] = {"num_servers": rng.randint(1, min(2, servers - 2))}
    if rng.random() < 0.2:
        written["planning"] = {"slo_margin": round(rng.uniform(0.0, 0.15), 2)}
    for entry in written["robot_fleet"]:
        if rng.random() < 0.25:
            entry["network"] = {"round_trip_ms": round(rng.uniform(2, 25), 1), "jitter_ms": round(rng.uniform(1, 8), 1)}
        slowest = max(PACES[gpu] for gpu in gpus)
        written[entry["task"]] = _task(rng, entry, slowest, services, crowded=servers < 2 + tasks)
    return written


def _task(rng: random.Random, entry: Mapping[str, Any], slowest: float, services: tuple[float, float], *, crowded: bool) -> Written:
    travel_ms = sum(entry.get("network", {}).values()) * 2.5
    model = rng.choice(list(ACTIONS))
    components = {"system1": {"model": model, "slo_ms": round(slowest * ACTIONS[model] * rng.uniform(*services) + travel_ms, 1)}}
    task: Written = {"pipeline": {"action_period_ms": rng.randint(80, 500)}, "components": components}
    if not crowded and rng.random() < 0.4:
        text, name = rng.choice(list(TEXTS)), rng.choice(["system2", "safety", "monitor"])
        components[name] = {"model": text, "slo_ms": round(slowest * TEXTS[text] * rng.uniform(1.3, 4.0) + travel_ms, 1)}
        if name == "system2":
            task["pipeline"]["system2_to_system1_call_ratio"] = rng.choice([0.05, 0.1])
        else:
            components[name]["freq_hz"] = round(rng.uniform(0.1, 0.8), 2)
    if rng.random() < 0.35:
        task["execution"] = {"mode": "async"}
    if rng.random() < 0.4:
        task["value"] = round(rng.uniform(0.3, 4.0), 2)
    if rng.random() < 0.15:
        task["min_action_rate_hz"] = round(rng.uniform(0.1, 0.8), 2)
    task["percentile"] = rng.choice([90, 95, 99, 99])
    return task


def declared(written: Written) -> Factory:
    return parse_factory(yaml.safe_dump(written, sort_keys=False))


def reordered(written: Written) -> Written:
    """With groups, fleet and tasks the other way round."""
    sections = {key: value for key, value in written.items() if key in RESERVED}
    tasks = {key: value for key, value in written.items() if key not in RESERVED}
    changed = {**sections, **dict(reversed(tasks.items()))}
    return deepcopy(changed | {key: list(reversed(written[key])) for key in ("server_cluster", "robot_fleet")})


def renamed(written: Written) -> Written:
    """With names of tasks that sort the other way round."""
    tasks = [key for key in written if key not in RESERVED]
    names = {task: f"job_{len(tasks) - i}" for i, task in enumerate(tasks)}
    changed = {names.get(key, key): deepcopy(value) for key, value in written.items()}
    changed["robot_fleet"] = [{**entry, "task": names[entry["task"]]} for entry in changed["robot_fleet"]]
    return changed
