"""Random factories, written as a user writes them: the text of a descriptor. A seed gives the same one again.

A factory has 1 to 3 GPU types, 1 to 4 tasks with 1 to 4 components each, any dispatch policy and any batching, and mostly tight
SLOs: 1.05 to 2.2 times what one request alone takes on the quickest of its GPUs.
"""

from __future__ import annotations

import copy
import csv
import functools
import io
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ros2_rfm_serving.factory import Catalogue, Factory, parse_factory
from ros2_rfm_serving.profiles import Profile, load_profiles

MEASURED = "NVIDIA H200"
PACES = {MEASURED: 1.0, "NVIDIA H100": 1.25, "NVIDIA L40": 2.1}
"""GPU type -> times as long as on the one that was measured: its profile and its service laws are stretched by that."""
ACTIONS_S = {"nvidia/GR00T-N1.6-3B": 0.0472, "physical-intelligence/pi0.5": 0.0518}
TEXTS_S = {"Qwen2.5-VL-7B-Instruct": 0.45, "Qwen2.5-VL-3B-Instruct": 0.2}
"""Model -> one request alone, on the type that was measured."""
POLICIES = ("fifo", "balanced", "best", "swift", "least_attained", "wait_ratio", "deadline")
BATCHINGS = ("fixed", "fixed", "wait", "continuous")
TIGHT, LOOSE = (1.05, 2.2), (2.2, 6.0)
SECTIONS = ("server_cluster", "robot_fleet", "standby", "planning", "hosts")
"""Every other key of a descriptor is a task."""

Descriptor = dict[str, Any]


@dataclass(frozen=True)
class Drawn:
    seed: int
    descriptor: Descriptor

    @property
    def tasks(self) -> list[str]:
        return [key for key in self.descriptor if key not in SECTIONS]

    def factory(self) -> Factory:
        return parse_factory(yaml.safe_dump(self.descriptor, sort_keys=False))

    # --- the same factory, changed a little ---

    def reordered(self) -> Drawn:
        """Groups, entries of the fleet, tasks and their components, each in reverse order."""
        changed = {key: self.descriptor[key] for key in reversed(list(self.descriptor))}
        changed["server_cluster"] = list(reversed(self.descriptor["server_cluster"]))
        changed["robot_fleet"] = list(reversed(self.descriptor["robot_fleet"]))
        for task in self.tasks:
            components = self.descriptor[task]["components"]
            changed[task] = {**self.descriptor[task], "components": dict(reversed(list(components.items())))}
        return Drawn(self.seed, changed)

    def renamed(self) -> Drawn:
        """Tasks have other names, in another alphabetical order."""
        names = {task: f"{chr(ord('z') - i)}_{task[::-1]}" for i, task in enumerate(self.tasks)}
        changed = {names.get(key, key): value for key, value in self.descriptor.items()}
        changed["robot_fleet"] = [{**entry, "task": names[entry["task"]]} for entry in self.descriptor["robot_fleet"]]
        return Drawn(self.seed, changed)

    def without_a_robot(self, task: str) -> Drawn | None:
        """None: it was the last one."""
        changed = copy.deepcopy(self.descriptor)
        (entry,) = (entry for entry in changed["robot_fleet"] if entry["task"] == task)
        entry["num_robots"] -= 1
        if not entry["num_robots"]:
            changed["robot_fleet"].remove(entry)
            del changed[task]
        return Drawn(self.seed, changed) if changed["robot_fleet"] else None

    def with_looser_slo(self, task: str, component: str, times: float = 1.25) -> Drawn:
        changed = copy.deepcopy(self.descriptor)
        changed[task]["components"][component]["slo_ms"] *= times
        return Drawn(self.seed, changed)

    def with_another_gpu(self, group: int) -> Drawn:
        changed = copy.deepcopy(self.descriptor)
        cluster = changed["server_cluster"][group]
        cluster["num_servers"] += 1
        for host in changed.get("hosts", {}).values():
            if cluster["gpu_type"] in host.get("gpus", {}):
                host["gpus"][cluster["gpu_type"]] += 1
                break
        return Drawn(self.seed, changed)


def drawn_factory(seed: int) -> Drawn:
    rng = random.Random(f"factory {seed}")
    types = rng.sample(list(PACES), rng.choice((1, 1, 2, 2, 3)))
    groups = [_group(rng, gpu_type) for gpu_type in types]
    servers = sum(group["num_servers"] for group in groups)
    names = [f"task_{i}" for i in range(rng.randint(1, min(4, servers)))]
    most = max(1, rng.choice((1, 2, 4)) * servers // len(names))
    fleet = [{"task": name, "num_robots": rng.randint(1, most)} for name in names]
    for entry in fleet:
        if rng.random() < 0.3:
            entry["network"] = {"round_trip_ms": round(rng.uniform(1, 25), 1), "jitter_ms": round(rng.uniform(0.5, 8), 1)}
    descriptor: Descriptor = {"server_cluster": groups, "robot_fleet": fleet}
    if servers > 1 + len(names) and rng.random() < 0.3:
        descriptor["standby"] = {"num_servers": 1, "peers": rng.random() < 0.5}
    if rng.random() < 0.25:
        descriptor["planning"] = {"slo_margin": round(rng.uniform(0.01, 0.12), 3)}
    if servers > 1 and rng.random() < 0.25:
        descriptor["hosts"] = _hosts(rng, groups)
    pace = min(PACES[gpu_type] for gpu_type in types)
    for entry in fleet:
        descriptor[entry["task"]] = _task(rng, pace, entry.get("network", {}), crowded=servers < 1 + len(names))
    return Drawn(seed, descriptor)


def _group(rng: random.Random, gpu_type: str) -> Descriptor:
    batching = rng.choice(BATCHINGS)
    return {"num_servers": rng.randint(1, 4), "gpu_type": gpu_type, "dispatch": rng.choice(POLICIES), "batching": batching}


def _hosts(rng: random.Random, groups: list[Descriptor]) -> Descriptor:
    """Two machines with some of the GPUs each; the second is farther."""
    near: dict[str, int] = {}
    far: dict[str, int] = {}
    for group in groups:
        here = rng.randint(0, group["num_servers"])
        near |= {group["gpu_type"]: here} if here else {}
        far |= {group["gpu_type"]: group["num_servers"] - here} if here < group["num_servers"] else {}
    return {
        "hall": {"address": "10.77.0.1", "gpus": near},
        "rack": {"address": "10.77.0.2", "gpus": far, "round_trip_ms": round(rng.uniform(0.0, 12.0), 1)},
    }


def _task(rng: random.Random, pace: float, network: dict[str, float], *, crowded: bool) -> Descriptor:
    """crowded: too few servers for other models than System 1's."""
    way_ms = network.get("round_trip_ms", 0.0) + 5.0 * network.get("jitter_ms", 0.0)
    model = rng.choice(list(ACTIONS_S))
    period_ms = round(rng.uniform(100, 500))
    tight = rng.random() < 0.7
    components = {"system1": {"model": model, "slo_ms": _slo_ms(rng, ACTIONS_S[model] * pace, way_ms, tight)}}
    pipeline: Descriptor = {"action_period_ms": period_ms}
    if not crowded:
        for name in rng.sample(("system2", "safety", "monitor"), rng.choice((0, 0, 1, 1, 2, 3))):
            text = rng.choice(list(TEXTS_S))
            components[name] = {"model": text, "slo_ms": _slo_ms(rng, TEXTS_S[text] * pace, way_ms, rng.random() < 0.5)}
            if name == "system2":
                pipeline["system2_to_system1_call_ratio"] = rng.choice((0.05, 0.1, 0.25, 1.0))
            else:
                components[name]["freq_hz"] = round(rng.uniform(0.2, 3.0), 2)
    task: Descriptor = {"pipeline": pipeline, "components": components, "percentile": rng.choice((75, 90, 95, 99, 99, 99))}
    if rng.random() < 0.4:
        task["execution"] = {"mode": "async"}
    if rng.random() < 0.5:
        task["value"] = round(rng.uniform(0.3, 4.0), 2)
    if rng.random() < 0.25:
        task["min_action_rate_hz"] = round(rng.uniform(0.02, 0.3) * 1e3 / period_ms, 3)
    return task


def _slo_ms(rng: random.Random, alone_s: float, way_ms: float, tight: bool) -> float:
    return round(1e3 * alone_s * rng.uniform(*(TIGHT if tight else LOOSE)) + way_ms, 1)


# --- what the GPU types take ---


def stretched_catalogue(shipped: Path, folder: Path) -> tuple[Profile, Catalogue]:
    """Profiles and catalogue with all types of `PACES`. shipped: config/profiles; folder: where they are written."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [line for line in (shipped / "h200.csv").read_text().splitlines() if not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0].keys())
    writer.writeheader()
    for gpu_type, pace in PACES.items():
        writer.writerows(_stretched_row(row, gpu_type, pace) for row in rows if row["gpu_type"] == MEASURED)
    (folder / "drawn.csv").write_text(out.getvalue())
    entries = yaml.safe_load((shipped / "models.yaml").read_text())
    models = {name: entries["models"][name] for name in (*ACTIONS_S, *TEXTS_S)}
    for model in models.values():
        measured = model["gpus"][MEASURED]
        model["gpus"] = {
            gpu_type: {**measured, "service": _stretched(measured["service"], pace)} for gpu_type, pace in PACES.items()
        }
    (folder / "models.yaml").write_text(yaml.safe_dump({"gpu_types": entries["gpu_types"], "models": models}))
    return load_profiles(folder), Catalogue.load(folder / "models.yaml")


def _stretched_row(row: dict[str, str], gpu_type: str, pace: float) -> dict[str, str]:
    stretched = {key: f"{float(value) * pace:.4f}" for key, value in row.items() if key.endswith("_ms")}
    return {**row, **stretched, "gpu_type": gpu_type, "rate_hz": f"{float(row['rate_hz']) / pace:.4f}"}


def _stretched(service: Any, pace: float) -> Any:
    if isinstance(service, dict):
        return {k: v * pace if k.endswith("_ms") else _stretched(v, pace) for k, v in service.items()}
    return service


@functools.cache
def memory_gb(shipped: Path) -> tuple[dict[str, float], dict[str, float]]:
    """(model -> GB, GPU type -> GB), as the catalogue's text has them."""
    entries = yaml.safe_load((shipped / "models.yaml").read_text())
    models = {name: entries["models"][name]["gpus"][MEASURED]["memory_gb"] for name in (*ACTIONS_S, *TEXTS_S)}
    return models, {name: gpu["memory_gb"] for name, gpu in entries["gpu_types"].items()}


def as_text(drawn: Drawn) -> str:
    return json.dumps(drawn.descriptor)
