"""What the pipelines say that LeRobot saves beside a policy: statistics, and which feature is which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from ros2_rfm_serving.engines.architectures.importers.files import read_json, read_tensors
from ros2_rfm_serving.engines.architectures.manifest import Affine
from ros2_rfm_serving.errors import ModelError

PRE, POST = "policy_preprocessor.json", "policy_postprocessor.json"
RELATIVE, ABSOLUTE = "relative_actions_processor", "absolute_actions_processor"
KNOWN = frozenset(
    {
        "rename_observations_processor",
        "to_batch_processor",
        "device_processor",
        "normalizer_processor",
        "unnormalizer_processor",
        "tokenizer_processor",
        "smolvla_new_line_processor",
        "new_line_task_processor",
        "pi0_new_line_processor",
        "pi05_prepare_state_tokenizer_processor_step",
        RELATIVE,
        ABSOLUTE,
    }
)
"""Steps that the bundle's own processing does, by LeRobot's names"""
Stats = dict[str, Tensor]


class Processors:
    """Raises: `ModelError` for a step that nobody here would do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.files: list[Path] = []
        self._before, self._after = self._steps(PRE), self._steps(POST)
        self._require_bare_images()
        renames = [step.get("config", {}).get("rename_map", {}) for step in self._before.values()]
        self._robot_names = {policy: robot for names in renames for robot, policy in names.items()}

    def robot_name(self, feature: str) -> str:
        """Of what the policy calls `feature`."""
        return str(self._robot_names.get(feature, feature))

    def state(self) -> Affine:
        return self._line(PRE, self._before, "normalizer_processor", "observation.state", "STATE", forward=True)

    def action(self) -> Affine:
        return self._line(POST, self._after, "unnormalizer_processor", "action", "ACTION", forward=False)

    def relative(self, num_actions: int, state_size: int) -> tuple[int | None, ...]:
        """Columns of the state that actions are counted from, as LeRobot's two steps do it: before the normalisation and after it.

        Raises: `ModelError`.
        """
        steps = ((PRE, self._before, RELATIVE, "normalizer_processor"), (POST, self._after, "unnormalizer_processor", ABSOLUTE))
        switched = ((self._before, RELATIVE), (self._after, ABSOLUTE))
        enabled = [bool(own.get(step, {}).get("config", {}).get("enabled")) for own, step in switched]
        if not any(enabled):
            return ()
        if not all(enabled):
            raise ModelError(f"{self._folder / PRE}: {RELATIVE}, and {ABSOLUTE} of {POST}: one of them is enabled alone")
        for name, own, first, second in steps:
            order = [step for step in own if step in (first, second)]
            if order != [first, second]:
                raise ModelError(f"{self._folder / name}: relative actions need {first}, then {second}; it has {order}")
        if state_size < num_actions:
            raise ModelError(f"{self._folder / PRE}: {RELATIVE}: {num_actions} actions, but the state has {state_size} columns")
        told = self._before[RELATIVE]["config"]
        names = [str(name).lower() for name in told.get("action_names") or ()]
        kept = [str(name).lower() for name in told.get("exclude_joints") or () if name]
        absolute = {column for column, name in enumerate(names) if any(word in name for word in kept)}
        return tuple(None if column in absolute else column for column in range(num_actions))

    def _steps(self, name: str) -> dict[str, dict[str, Any]]:
        file = self._folder / name
        self.files.append(file)
        steps: dict[str, dict[str, Any]] = {}
        for step in read_json(file).content.get("steps", []):
            registered = str(step.get("registry_name") or "")
            if registered not in KNOWN:
                raise ModelError(
                    f"{file}: a step {registered or step.get('class')!r}, which no bundle does; use the engine `lerobot`"
                )
            if registered in steps:
                raise ModelError(f"{file}: {registered!r} is there twice, a bundle does it once; use the engine `lerobot`")
            steps[registered] = step
        return steps

    def _line(self, name: str, steps: dict[str, Any], step: str, feature: str, kind: str, *, forward: bool) -> Affine:
        """forward: into the model."""
        told = steps.get(step, {})
        mode = told.get("config", {}).get("norm_map", {}).get(kind, "IDENTITY")
        if mode == "IDENTITY" or not told or (forward and feature not in _normalised(told)):
            return Affine()
        stats: Stats = self._statistics(told).get(feature, {})
        if not stats:
            return Affine()  # as LeRobot does without statistics
        try:
            return affine_of(mode, stats, float(told["config"].get("eps", 1e-8)), forward=forward)
        except KeyError as error:
            raise ModelError(
                f"{self._folder / name}: {feature} is normalised by {mode}, but its statistics lack {error}"
            ) from error

    def _statistics(self, told: dict[str, Any]) -> dict[str, Stats]:
        """By feature."""
        found: dict[str, Stats] = {}
        if state_file := told.get("state_file"):
            file = self._folder / Path(state_file).name
            if file not in self.files:
                self.files.append(file)
            for key, tensor in read_tensors(file).items():
                feature, _, name = key.rpartition(".")
                found.setdefault(feature, {})[name] = tensor
        return found

    def _require_bare_images(self) -> None:
        """Networks here have one scale for all pixels. Raises: `ModelError`."""
        told = self._before.get("normalizer_processor", {})
        mode = told.get("config", {}).get("norm_map", {}).get("VISUAL", "IDENTITY")
        if mode == "IDENTITY":
            return
        kinds = {name: each.get("type") for name, each in told["config"].get("features", {}).items()}
        scaled = sorted(name for name in _normalised(told) & self._statistics(told).keys() if kinds[name] == "VISUAL")
        if scaled:
            raise ModelError(
                f"{self._folder / PRE}: norm_map: VISUAL is {mode}, with statistics of {', '.join(scaled)}, which no bundle does; "
                "use the engine `lerobot`"
            )


def _normalised(step: dict[str, Any]) -> set[str]:
    """Observations that LeRobot's step looks at."""
    config = step["config"]
    only, features = config.get("normalize_observation_keys"), set(config.get("features", {}))
    return features if only is None else features & set(only)


def affine_of(mode: str, stats: Stats, eps: float, *, forward: bool) -> Affine:
    """LeRobot's modes, in float32 as there. Raises: `KeyError` for statistics that are missing, or an unknown mode."""
    if mode == "MEAN_STD":
        scale = stats["std"] + eps if forward else stats["std"]
        return line(stats["mean"], scale)
    low, high = (stats[key] for key in {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}[mode])
    width = (high - low).float()
    width = width.where(width != 0, width.new_tensor(eps))
    return line(low + width / 2, width / 2)


def line(offset: Tensor, scale: Tensor) -> Affine:
    return Affine(offset=tuple(offset.float().flatten().tolist()), scale=tuple(scale.float().flatten().tolist()))
