"""Factory of `rfm bench fleet`: a descriptor, a model that is declared as emulated, and the parameters of its processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import yaml

TASK, MODEL, CAMERA = "arm", "emulated/fleet-policy", "front"
ACTIONS, STATE_SIZE, CHUNK_STEPS = ("x", "y", "z", "gripper"), 8, 50
HORIZON_STEPS = 5
"""Executed steps of each chunk: a robot with a low request rate is in slow motion, including its control periods."""
SLO_S, AGE_PERIODS = 4.0, 4.0
"""Limits far above those of an idle machine: late answers are counted without a stop. The age is in request periods."""
BATCH = 8
GRACE_S = 30.0
HEADER = "model,gpu_type,batching,batch_size,rate_hz,mean_ms,p50_ms,p90_ms,p95_ms,p99_ms\n"
ROWS = ((1, 5, 20), (1, 45, 40), (BATCH, 5, 25), (BATCH, 200, 60))
"""Rows of the profile: (batch, requests/s, ms)."""


class Shape(NamedTuple):
    """Size of one factory; `standbys` of its servers are outside the normal routes."""

    robots: int
    servers: int
    standbys: int
    request_rate_hz: float
    """Request rate of each robot."""

    @property
    def names(self) -> list[str]:
        return [f"{TASK}_{i + 1}" for i in range(self.robots)]

    @property
    def control_rate_hz(self) -> float:
        return HORIZON_STEPS * self.request_rate_hz


def write(shape: Shape, folder: Path) -> Path:
    """Write the descriptor and its profiles, and return the descriptor's path."""
    rows = [f"{MODEL},EMULATED,fixed,{batch},{rate},{ms},{ms},{ms},{ms},{ms}\n" for batch, rate, ms in ROWS]
    (folder / "emulated.csv").write_text(HEADER + "".join(rows), encoding="utf-8")
    model = {
        "engine": "emulated",
        "action_names": list(ACTIONS),
        "cameras": [CAMERA],
        "state_size": STATE_SIZE,
        "chunk_length": CHUNK_STEPS,
        "gpus": {"EMULATED": {"memory_gb": 1, "load_s": 0, "source": "chosen for this benchmark; no model runs"}},
    }
    (folder / "models.yaml").write_text(yaml.safe_dump({"models": {MODEL: model}}), encoding="utf-8")
    file = folder / "fleet.yaml"
    file.write_text(yaml.safe_dump(_descriptor(shape), sort_keys=False), encoding="utf-8")
    return file


def _descriptor(shape: Shape) -> dict[str, Any]:
    return {
        "server_cluster": {"num_servers": shape.servers, "gpu_type": "EMULATED"},
        **({"standby": {"num_servers": shape.standbys}} if shape.standbys else {}),
        "robot_fleet": [{"task": TASK, "num_robots": shape.robots}],
        TASK: {
            "pipeline": {"action_period_ms": 1e3 / shape.request_rate_hz},
            "execution": {"mode": "async"},
            "components": {"system1": {"model": MODEL, "prompt": "go on", "slo_ms": 1e3 * SLO_S}},
        },
    }


def robots(names: list[str], shape: Shape) -> dict[str, Any]:
    """Return the parameters of a process of these robots."""
    return {
        "robots": names,
        "task": TASK,
        "instruction": "go on",
        "action_names": list(ACTIONS),
        "cameras": [CAMERA],
        "state_size": STATE_SIZE,
        "control_rate_hz": shape.control_rate_hz,
        "tick": "state",
        "execution_horizon": HORIZON_STEPS,
        "max_action_age_s": AGE_PERIODS / shape.request_rate_hz,
        "max_observation_age_s": 2.0 / shape.request_rate_hz,
    }


def server(name: str, folder: Path) -> dict[str, Any]:
    return {"server": name, "profiles_folder": str(folder), "absent_grace_s": GRACE_S}
