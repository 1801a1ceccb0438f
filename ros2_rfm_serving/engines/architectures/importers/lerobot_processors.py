"""What the pipelines say that LeRobot saves beside a policy: statistics, and which feature is which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from ros2_rfm_serving.engines.architectures.importers.files import read_json, read_tensors
from ros2_rfm_serving.engines.architectures.manifest import Affine
from ros2_rfm_serving.errors import ModelError

PRE, POST = "policy_preprocessor.json", "policy_postprocessor.json"
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
        "relative_actions_processor",
        "absolute_actions_processor",
    }
)
"""Steps that the bundle's own processing does, by LeRobot's names; relative actions only where they are switched off."""
Stats = dict[str, Tensor]


class Processors:
    """Raises: `ModelError` for a step that nobody here would do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.files: list[Path] = []
        self._before, self._after = self._steps(PRE), self._steps(POST)
        renames = [step.get("config", {}).get("rename_map", {}) for step in self._before.values()]
        self._robot_names = {policy: robot for names in renames for robot, policy in names.items()}

    def robot_name(self, feature: str) -> str:
        """Of what the policy calls `feature`."""
        return str(self._robot_names.get(feature, feature))

    def state(self) -> Affine:
        return self._line(PRE, self._before, "normalizer_processor", "observation.state", "STATE", forward=True)

    def action(self) -> Affine:
        return self._line(POST, self._after, "unnormalizer_processor", "action", "ACTION", forward=False)

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
            if "_actions_processor" in registered and step.get("config", {}).get("enabled"):
                raise ModelError(
                    f"{file}: {registered} is enabled: its actions are relative to the state; use the engine `lerobot`"
                )
            steps[registered] = step
        return steps

    def _line(self, name: str, steps: dict[str, Any], step: str, feature: str, kind: str, *, forward: bool) -> Affine:
        """forward: into the model."""
        told = steps.get(step, {})
        mode = told.get("config", {}).get("norm_map", {}).get(kind, "IDENTITY")
        if mode == "IDENTITY" or not told:
            return Affine()
        stats: Stats = {}
        if state_file := told.get("state_file"):
            file = self._folder / Path(state_file).name
            self.files.append(file)
            stats = {key.rpartition(".")[2]: t for key, t in read_tensors(file).items() if key.rpartition(".")[0] == feature}
        if not stats:
            return Affine()  # as LeRobot does without statistics
        try:
            return affine_of(mode, stats, float(told["config"].get("eps", 1e-8)), forward=forward)
        except KeyError as error:
            raise ModelError(
                f"{self._folder / name}: {feature} is normalised by {mode}, but its statistics lack {error}"
            ) from error


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
