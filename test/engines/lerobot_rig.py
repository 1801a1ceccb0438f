"""LeRobot's policies, tiny and random, as engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ros2_rfm_serving.engines.lerobot.engine import LeRobotEngine
from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.profiles import Profile
from test.engines import tiny_lerobot as tiny

SPLIT = ("smolvla", "pi0", "pi05")
KINDS = (*SPLIT, "act", "diffusion")
CLOSE = 1e-5


def built(kind: str, folder: Path, **options: Any) -> LeRobotEngine:
    at_hand = {"action_names": tiny.NAMES, **({"tokenizer": str(folder / "vlm")} if (folder / "vlm").is_dir() else {})}
    entry = CatalogueEntry(engine="lerobot", options={"path": str(folder), **at_hand, **options})
    spec = EngineSpec(model=kind, entry=entry, models_folder=Path(), profile=Profile({}), gpu_type="cpu", wait=lambda _: None)
    with tiny.loading():
        engine = build_engine(spec)
    assert isinstance(engine, LeRobotEngine)
    return engine


def close(got: Any, reference: Any) -> bool:
    return bool(np.abs(got - reference).max() <= CLOSE * max(1.0, np.abs(reference).max()))
