"""Actions relative to the state, by their authors' code: python -m test.engines.parity.relative OPENPI LEROBOT GROOT

Clones, bare or not; of each the files at the revision below are run, with what they import for training left empty. Writes
`relative.json`: model space to robot space, and actions that go on elsewhere back to model space.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch

HERE = Path(__file__).parent
FILE = HERE / "relative.json"
OPENPI = "15a9616a00943ada6c20a0f158e3adb39df2ccac"
LEROBOT = "7427f31801f944f5ec9ce53cda02862ce7d1638b"
GROOT = "4e62473d5226c55784697944a5c9606a51927bfc"
NAMES, STATE_SIZE, LENGTH, PREFIX = ("x", "y", "z", "gripper"), 6, 12, 5
GROOT_LENGTH = 7
"""Of its toy's chunk"""
RELATIVE = (True, True, True, False)
TAG = "toy"
GROUPS = {"state": {"head": 2, "arm": 3, "gripper": 1}, "action": {"arm": 3, "gripper": 1}}


def main(openpi: str, lerobot: str, groot: str) -> int:
    rng = np.random.default_rng(3)
    given = {
        "state": rng.uniform(-1, 1, (2, STATE_SIZE)),
        "chunk": rng.uniform(-1.2, 1.2, (2, LENGTH, len(NAMES))),
        "prefix": rng.uniform(-1, 1, (2, PREFIX, len(NAMES))),
    }
    given = {name: values.astype(np.float32) for name, values in given.items()}
    told = {
        "given": {name: values.tolist() for name, values in given.items()},
        "pi0_openpi": _openpi(source_of(openpi, OPENPI, "src/openpi/transforms.py"), given, quantiles=False),
        "pi05_openpi": _openpi(source_of(openpi, OPENPI, "src/openpi/transforms.py"), given, quantiles=True),
        "pi0": _lerobot(source_of(lerobot, LEROBOT, "src/lerobot/processor/relative_action_processor.py"), given),
        "groot": _groot(groot, given),
    }
    FILE.write_text(json.dumps(told, separators=(",", ":")) + "\n")
    return 0


def source_of(clone: str, revision: str, path: str) -> str:
    return subprocess.run(["git", "-C", clone, "show", f"{revision}:{path}"], capture_output=True, text=True, check=True).stdout


def definitions_of(source: str, **names: Any) -> SimpleNamespace:
    """Its definitions, without its imports."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    module = ModuleType("reference")
    sys.modules["reference"] = module  # where dataclasses look for their types
    module.__dict__.update(names)
    future = compile("from __future__ import annotations", "", "exec").co_flags
    exec(compile(tree, "reference", "exec", flags=future, dont_inherit=True), module.__dict__)
    return SimpleNamespace(**module.__dict__)


def statistics(size: int) -> dict[str, list[float]]:
    mean, std = np.linspace(-0.3, 0.4, size), np.linspace(0.5, 1.5, size)
    return {"mean": mean.tolist(), "std": std.tolist(), "q01": (mean - std).tolist(), "q99": (mean + 2 * std).tolist()}


def _said(forth: Callable[[int], Any], back: Callable[[int], Any]) -> dict[str, Any]:
    rows = range(2)
    return {"robot": [np.asarray(forth(i)).tolist() for i in rows], "model": [np.asarray(back(i)).tolist() for i in rows]}


def openpi_transforms(source: str) -> SimpleNamespace:
    """Return the definitions of openpi's `transforms.py`."""
    empty = mock.MagicMock()
    names = {
        "dataclasses": dataclasses,
        "np": np,
        "Protocol": object,
        "runtime_checkable": lambda c: c,
        "TypeVar": mock.MagicMock(),
    }
    return definitions_of(
        source, at=empty, _normalize=empty, _tokenizer=empty, jax=empty, traverse_util=empty, image_tools=empty, **names
    )


def _openpi(source: str, given: dict[str, Any], *, quantiles: bool) -> dict[str, Any]:
    code = openpi_transforms(source)
    stats = SimpleNamespace(**{name: np.array(values) for name, values in statistics(len(NAMES)).items()})
    normalize, unnormalize = code.Normalize(None), code.Unnormalize(None)
    into = normalize._normalize_quantile if quantiles else normalize._normalize
    out = unnormalize._unnormalize_quantile if quantiles else unnormalize._unnormalize
    absolute, delta = code.AbsoluteActions(RELATIVE), code.DeltaActions(RELATIVE)

    def forth(i: int) -> Any:
        return absolute({"state": given["state"][i], "actions": out(given["chunk"][i], stats)})["actions"]

    def back(i: int) -> Any:
        return into(delta({"state": given["state"][i], "actions": given["prefix"][i].copy()})["actions"], stats)

    return _said(forth, back)


def _lerobot(source: str, given: dict[str, Any]) -> dict[str, Any]:
    registry = SimpleNamespace(register=lambda name: lambda own: own)
    names: dict[str, Any] = {"ProcessorStep": object, "ProcessorStepRegistry": registry, "dataclass": dataclass, "field": field}
    code = definitions_of(source, torch=torch, Any=Any, **names)
    step = code.RelativeActionsProcessorStep(enabled=True, exclude_joints=["Grip"], action_names=list(NAMES))
    mask = step._build_mask(len(NAMES))
    mean, std = (torch.tensor(statistics(len(NAMES))[name]) for name in ("mean", "std"))
    state = torch.from_numpy(given["state"])

    def forth(i: int) -> Any:
        return code.to_absolute_actions(torch.from_numpy(given["chunk"][i : i + 1]) * std + mean, state[i : i + 1], mask)[0]

    def back(i: int) -> Any:
        own = code.to_relative_actions(torch.from_numpy(given["prefix"][i : i + 1]), state[i : i + 1], mask)
        return ((own - mean) / (std + 1e-8))[0]

    return _said(forth, back)


def groot_statistics() -> dict[str, Any]:
    """Of relative actions for each of a chunk."""

    def of(shape: tuple[int, ...]) -> dict[str, Any]:
        low = np.linspace(-1.5, -0.5, int(np.prod(shape))).reshape(shape)
        high = np.linspace(0.75, 2.0, int(np.prod(shape))).reshape(shape)
        return {"min": low.tolist(), "max": high.tolist(), "mean": low.tolist(), "std": high.tolist()}

    plain = {part: {key: of((size,)) for key, size in own.items()} for part, own in GROUPS.items()}
    return {TAG: plain | {"relative_action": {"arm": of((GROOT_LENGTH, GROUPS["action"]["arm"]))}}}


def groot_modalities() -> dict[str, Any]:
    configs = [
        {"rep": "RELATIVE", "type": "NON_EEF", "format": "DEFAULT", "state_key": None},
        {"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT", "state_key": None},
    ]
    action = {"delta_indices": list(range(GROOT_LENGTH)), "modality_keys": list(GROUPS["action"]), "action_configs": configs}
    return {"state": {"delta_indices": [0], "modality_keys": list(GROUPS["state"])}, "action": action}


def _groot(clone: str, given: dict[str, Any]) -> dict[str, Any]:
    for path in ("types", "utils", "state_action/pose", "state_action/action_chunking", "state_action/state_action_processor"):
        name = f"gr00t.data.{path.replace('/', '.')}"
        for package in ("gr00t", "gr00t.data", "gr00t.data.state_action", "gr00t.configs", "gr00t.configs.data"):
            sys.modules.setdefault(package, ModuleType(package))
        if path == "types":
            sys.modules["gr00t.data.embodiment_tags"] = mock.MagicMock()
        module = sys.modules[name] = ModuleType(name)
        exec(compile(source_of(clone, GROOT, f"gr00t/data/{path}.py"), name, "exec"), module.__dict__)
        if path == "types":
            sys.modules["gr00t.configs.data.embodiment_configs"] = module
    processor = sys.modules["gr00t.data.state_action.state_action_processor"].__dict__["StateActionProcessor"]
    own = processor({TAG: groot_modalities()}, groot_statistics(), use_relative_action=True, clip_outliers=False)

    def parts(values: Any, part: str) -> dict[str, Any]:
        cuts = np.cumsum(list(GROUPS[part].values()))[:-1]
        return dict(zip(GROUPS[part], np.split(values, cuts, axis=-1), strict=True))

    def joined(found: dict[str, Any]) -> Any:
        return np.concatenate([found[key] for key in GROUPS["action"]], axis=-1)

    def forth(i: int) -> Any:
        return joined(
            own.unapply_action(parts(given["chunk"][i, :GROOT_LENGTH], "action"), TAG, parts(given["state"][i][None], "state"))
        )

    def back(i: int) -> Any:
        whole = np.concatenate([given["prefix"][i], np.zeros((GROOT_LENGTH - PREFIX, len(NAMES)), np.float32)])
        found = own.apply_action(parts(whole, "action"), TAG, parts(given["state"][i][None], "state"))
        return joined(found)[:PREFIX]

    return _said(forth, back)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
