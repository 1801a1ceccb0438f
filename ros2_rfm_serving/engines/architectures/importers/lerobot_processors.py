"""What the pipelines say that LeRobot saves beside a policy: statistics, and which feature is which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from ros2_rfm_serving.engines.architectures.importers.files import read_json, read_tensors
from ros2_rfm_serving.engines.architectures.manifest import Affine, ranges_of
from ros2_rfm_serving.engines.lerobot_format import POSTPROCESSOR as POST
from ros2_rfm_serving.engines.lerobot_format import PREPROCESSOR as PRE
from ros2_rfm_serving.engines.lerobot_format import without_statistics
from ros2_rfm_serving.errors import ModelError

RELATIVE, ABSOLUTE = "relative_actions_processor", "absolute_actions_processor"
NORMALIZER, UNNORMALIZER = "normalizer_processor", "unnormalizer_processor"
STATE_WORDS = "pi05_prepare_state_tokenizer_processor_step"
NEW_LINE = ("smolvla_new_line_processor", "new_line_task_processor", "pi0_new_line_processor")
KNOWN = frozenset(
    {
        "rename_observations_processor",
        "to_batch_processor",
        "device_processor",
        NORMALIZER,
        UNNORMALIZER,
        "tokenizer_processor",
        *NEW_LINE,
        STATE_WORDS,
        RELATIVE,
        ABSOLUTE,
    }
)
"""Steps that the bundle's own processing does, by LeRobot's names"""
RANGES = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}
"""Modes that scale to [-1, 1] -> the statistics that become -1 and 1"""
Stats = dict[str, Tensor]


class Processors:
    """Raises: `ModelError` for a step that nobody here would do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.files: list[Path] = []
        self._before, self._after = self._steps(PRE), self._steps(POST)
        self._require_bare_images()
        self._require_float32()
        self.rename_map = {
            str(robot): str(policy)
            for step in self._before.values()
            for robot, policy in (step.get("config", {}).get("rename_map") or {}).items()
        }
        """A robot's feature -> the policy's"""

    @property
    def statistics(self) -> frozenset[str]:
        """Features of the data set whose statistics the normaliser has."""
        return frozenset(self._statistics(self._before.get(NORMALIZER, {})))

    def state(self, *, raw_units: bool = False) -> Affine:
        return self._line(PRE, self._before, NORMALIZER, "observation.state", "STATE", forward=True, raw_units=raw_units)

    def action(self, *, raw_units: bool = False) -> Affine:
        return self._line(POST, self._after, UNNORMALIZER, "action", "ACTION", forward=False, raw_units=raw_units)

    @property
    def ends_lines(self) -> bool:
        """Whether a step ends an instruction with a new line."""
        return any(step in self._before for step in NEW_LINE)

    def tokenizer(self) -> dict[str, Any]:
        """Return the configuration of the step that makes tokens; `folder`: where it lies in the checkpoint, if it does.

        Raises: `ModelError` where it does what no bundle does.
        """
        step = self._before.get("tokenizer_processor", {})
        config = dict(step.get("config") or {})
        for key, served in (("task_key", "task"), ("padding_side", "right")):
            if config.get(key, served) != served:
                raise ModelError(
                    f"{self._folder / PRE}: tokenizer_processor.{key} is {config[key]!r}, a bundle does {served!r}; "
                    "use the engine `lerobot`"
                )
        if artifact := (step.get("artifacts") or {}).get("tokenizer_name"):
            config["folder"] = self._folder / Path(str(artifact)).name
        return config

    def require_state_in_prompt(self) -> None:
        """Accept pi0.5's steps: a normalised state, then its words. Raises: `ModelError`."""
        order = [step for step in self._before if step in (NORMALIZER, STATE_WORDS)]
        if order != [NORMALIZER, STATE_WORDS]:
            raise ModelError(
                f"{self._folder / PRE}: pi0.5's prompt has the normalised state: {NORMALIZER}, then {STATE_WORDS}; it has {order}; "
                "use the engine `lerobot`"
            )

    def relative(self, num_actions: int, state_size: int) -> tuple[int | None, ...]:
        """Columns of the state that actions are counted from, as LeRobot's two steps do it: before the normalisation and after it.

        Raises: `ModelError`.
        """
        steps = ((PRE, self._before, RELATIVE, NORMALIZER), (POST, self._after, UNNORMALIZER, ABSOLUTE))
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
            if not registered:
                raise ModelError(
                    f"{file}: a step {step.get('class')!r} that is not registered with LeRobot by name: neither a bundle nor the "
                    "engine `lerobot` runs it"
                )
            if registered not in KNOWN:
                raise ModelError(f"{file}: a step {registered!r}, which no bundle does; use the engine `lerobot`")
            if registered in steps:
                raise ModelError(f"{file}: {registered!r} is there twice, a bundle does it once; use the engine `lerobot`")
            steps[registered] = step
        return steps

    def _line(
        self, name: str, steps: dict[str, Any], step: str, feature: str, kind: str, *, forward: bool, raw_units: bool
    ) -> Affine:
        """forward: into the model. raw_units: without statistics too, where LeRobot leaves numbers as they are."""
        told = steps.get(step, {})
        mode = told.get("config", {}).get("norm_map", {}).get(kind, "IDENTITY")
        if mode == "IDENTITY" or not told or (forward and feature not in _normalised(told)):
            return Affine()
        known = self._statistics(told)
        stats: Stats = known.get(feature, {})
        if not stats:
            if not raw_units:
                raise ModelError(f"{self._folder / name}: {without_statistics(feature, mode, known)}; --raw-units imports it so")
            return Affine()
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

    def _require_float32(self) -> None:
        """Statistics here are in float32. Raises: `ModelError`."""
        for name, steps in ((PRE, self._before), (POST, self._after)):
            dtype = (steps.get("device_processor", {}).get("config") or {}).get("float_dtype")
            if dtype not in (None, "float32"):
                raise ModelError(
                    f"{self._folder / name}: device_processor.float_dtype is {dtype!r}, a bundle processes in float32; "
                    "use the engine `lerobot`"
                )

    def _require_bare_images(self) -> None:
        """Networks here have one scale for all pixels. Raises: `ModelError`."""
        told = self._before.get(NORMALIZER, {})
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
    """Return the scaling of one of LeRobot's modes, in float32 as there (`NormalizerProcessorStep`; 0.4.4 and 0.6.1 are the same).

    Raises: `KeyError` for statistics that are missing, or an unknown mode.
    """
    if mode == "MEAN_STD":
        mean, std = _flat(stats["mean"]), _flat(stats["std"])
        return Affine(offset=tuple(mean.tolist()), scale=tuple((std + eps if forward else std).tolist()))
    low, high = (_flat(stats[key]) for key in RANGES[mode])
    width = high - low
    return ranges_of(low.tolist(), width.where(width != 0, width.new_tensor(eps)).tolist())


def _flat(statistic: Tensor) -> Tensor:
    return statistic.float().flatten()
