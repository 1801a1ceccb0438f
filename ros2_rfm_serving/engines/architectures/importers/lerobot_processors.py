"""Pipelines that LeRobot saves beside a policy: statistics, and names of features."""

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
"""Steps that the bundle's own processing covers, with LeRobot's names."""
RANGES = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}
"""Statistics that become -1 and 1, by the mode that scales to [-1, 1]."""
MODES = ("IDENTITY", "MEAN_STD", *RANGES)
FORMS: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("rename_map", "norm_map", "features"), ((dict,), "a map")),
    **dict.fromkeys(("normalize_observation_keys", "action_names", "exclude_joints"), ((list,), "a list")),
    **dict.fromkeys(("tokenizer_name", "task_key", "padding_side", "float_dtype"), ((str,), "a text")),
    "eps": ((int, float), "a number"),
    "max_length": ((int,), "a whole number"),
    "enabled": ((bool,), "true or false"),
}
"""Types of the keys of a step's `config` that are read here; null counts as a missing key."""
Stats = dict[str, Tensor]


class Processors:
    """Pipelines of a checkpoint. Raises: `ModelError` for a step that the bundle's processing does not cover."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.files: list[Path] = []
        self._before, self._after = self._steps(PRE), self._steps(POST)
        self._require_bare_images()
        self._require_float32()
        self.rename_map = {
            str(robot): str(policy)
            for step in self._before.values()
            for robot, policy in step["config"].get("rename_map", {}).items()
        }
        """Policy's feature for each robot's feature."""

    @property
    def statistics(self) -> frozenset[str]:
        """Features of the data set whose statistics the normaliser has."""
        return frozenset(self._statistics(self._before.get(NORMALIZER, NO_STEP)))

    def state(self, *, raw_units: bool = False) -> Affine:
        return self._line(PRE, self._before, NORMALIZER, "observation.state", "STATE", forward=True, raw_units=raw_units)

    def action(self, *, raw_units: bool = False) -> Affine:
        return self._line(POST, self._after, UNNORMALIZER, "action", "ACTION", forward=False, raw_units=raw_units)

    @property
    def ends_lines(self) -> bool:
        """True if a step ends an instruction with a new line."""
        return any(step in self._before for step in NEW_LINE)

    def tokenizer(self) -> dict[str, Any]:
        """Return the configuration of the tokenizer's step, with its place in the checkpoint, if it has one, as `folder`.

        Raises: `ModelError` if the step does something that no bundle does.
        """
        step = self._before.get("tokenizer_processor", NO_STEP)
        config = dict(step["config"])
        for key, served in (("task_key", "task"), ("padding_side", "right")):
            if config.get(key, served) != served:
                raise ModelError(
                    f"{self._folder / PRE}: tokenizer_processor.{key} is {config[key]!r}, a bundle does {served!r}; "
                    "use the engine `lerobot`"
                )
        if artifact := step["artifacts"].get("tokenizer_name"):
            config["folder"] = self._folder / Path(str(artifact)).name
        return config

    def require_state_in_prompt(self) -> None:
        """Check that pi0.5 has its steps: a normalised state, then its words. Raises: `ModelError`."""
        order = [step for step in self._before if step in (NORMALIZER, STATE_WORDS)]
        if order != [NORMALIZER, STATE_WORDS]:
            raise ModelError(
                f"{self._folder / PRE}: pi0.5's prompt has the normalised state: {NORMALIZER}, then {STATE_WORDS}; it has {order}; "
                "use the engine `lerobot`"
            )

    def relative(self, num_actions: int, state_size: int) -> tuple[int | None, ...]:
        """Return the columns of the state that actions are relative to; nothing if they are absolute.

        LeRobot has two steps for it: one before normalisation, and one after it. Raises: `ModelError` if the steps are incomplete
        or in another order.
        """
        steps = ((PRE, self._before, RELATIVE, NORMALIZER), (POST, self._after, UNNORMALIZER, ABSOLUTE))
        switched = ((self._before, RELATIVE), (self._after, ABSOLUTE))
        enabled = [bool(own.get(step, NO_STEP)["config"].get("enabled")) for own, step in switched]
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
        names = [str(name).lower() for name in told.get("action_names", ())]
        kept = [str(name).lower() for name in told.get("exclude_joints", ()) if name]
        absolute = {column for column, name in enumerate(names) if any(word in name for word in kept)}
        return tuple(None if column in absolute else column for column in range(num_actions))

    def _steps(self, name: str) -> dict[str, dict[str, Any]]:
        file = self._folder / name
        self.files.append(file)
        steps: dict[str, dict[str, Any]] = {}
        for place, told in enumerate(_list_of(file, "steps", read_json(file).content.get("steps"))):
            step = _checked(file, f"steps.{place}", told)
            registered = step["registry_name"]
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
        """Return the scaling of a feature. forward: into the model.
        raw_units: also without statistics, where LeRobot leaves numbers unchanged. Raises: `ModelError`."""
        told = steps.get(step, NO_STEP)
        mode = _mode_of(self._folder / name, step, told, kind)
        if mode == "IDENTITY" or (forward and feature not in _normalised(told)):
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
        except (RuntimeError, ValueError) as error:  # different lengths, or a width below 0
            raise ModelError(
                f"{self._folder / str(told['state_file'])}: statistics of {feature}: {mode} cannot be computed from them: {error}"
            ) from error

    def _statistics(self, told: dict[str, Any]) -> dict[str, Stats]:
        """Return the statistics of a step, by feature."""
        found: dict[str, Stats] = {}
        if state_file := told["state_file"]:
            file = self._folder / Path(state_file).name
            if file not in self.files:
                self.files.append(file)
            for key, tensor in read_tensors(file).items():
                feature, _, name = key.rpartition(".")
                found.setdefault(feature, {})[name] = tensor
        return found

    def _require_float32(self) -> None:
        """Check that a pipeline computes in float32, as statistics here do. Raises: `ModelError`."""
        for name, steps in ((PRE, self._before), (POST, self._after)):
            dtype = steps.get("device_processor", NO_STEP)["config"].get("float_dtype")
            if dtype not in (None, "float32"):
                raise ModelError(
                    f"{self._folder / name}: device_processor.float_dtype is {dtype!r}, a bundle processes in float32; "
                    "use the engine `lerobot`"
                )

    def _require_bare_images(self) -> None:
        """Check that images have no statistics, as networks here have one scale for all pixels. Raises: `ModelError`."""
        told = self._before.get(NORMALIZER, NO_STEP)
        mode = _mode_of(self._folder / PRE, NORMALIZER, told, "VISUAL")
        if mode == "IDENTITY":
            return
        kinds = {name: each.get("type") for name, each in told["config"].get("features", {}).items()}
        scaled = sorted(name for name in _normalised(told) & self._statistics(told).keys() if kinds[name] == "VISUAL")
        if scaled:
            raise ModelError(
                f"{self._folder / PRE}: norm_map: VISUAL is {mode}, with statistics of {', '.join(scaled)}, which no bundle does; "
                "use the engine `lerobot`"
            )


NO_STEP: dict[str, Any] = {"registry_name": "", "config": {}, "artifacts": {}, "state_file": ""}
"""Step of a pipeline that lacks it."""


def _list_of(file: Path, key: str, value: Any) -> list[Any]:
    """Return a value that is a list. Raises: `ModelError` for any other."""
    if not isinstance(value, list):
        raise ModelError(f"{file}: {key}: a list is expected, as LeRobot's save_pretrained writes it, it is {_shown(value)}")
    return value


def _checked(file: Path, where: str, told: Any) -> dict[str, Any]:
    """Return a step with all the keys of `NO_STEP`, whose configuration has the types of `FORMS`. Raises: `ModelError`."""
    if not isinstance(told, dict):
        raise ModelError(f"{file}: {where}: a map with registry_name and config is expected, it is {_shown(told)}")
    step = told | {key: default if told.get(key) is None else told[key] for key, default in NO_STEP.items()}
    for key, default in NO_STEP.items():
        if not isinstance(step[key], type(default)):
            form = "a map" if isinstance(default, dict) else "a text"
            raise ModelError(f"{file}: {where}.{key}: {form} is expected, it is {_shown(step[key])}")
    where = f"{where} ({step['registry_name']}).config"
    step["config"] = {key: value for key, value in step["config"].items() if value is not None}
    for key, value in step["config"].items():
        kinds, form = FORMS.get(key, ((object,), ""))
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds and object not in kinds):
            raise ModelError(f"{file}: {where}.{key}: {form} is expected, it is {_shown(value)}")
        if kinds == (list,) and isinstance(value, list) and not all(isinstance(one, str) for one in value):
            raise ModelError(f"{file}: {where}.{key}: {form} of texts is expected, it is {_shown(value)}")
    for name, feature in step["config"].get("features", {}).items():
        if not isinstance(feature, dict):
            raise ModelError(f"{file}: {where}.features.{name}: a map with type and shape is expected, it is {_shown(feature)}")
    return step


def _shown(value: Any) -> str:
    """Return a value for an error, on one short line."""
    text = "missing" if value is None else repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}.."


MAX_SHOWN = 60


def _mode_of(file: Path, name: str, step: dict[str, Any], kind: str) -> str:
    """Return the mode in which a step normalises features of a kind. Raises: `ModelError` for a mode that no release has."""
    mode = step["config"].get("norm_map", {}).get(kind, "IDENTITY")
    if mode not in MODES:
        raise ModelError(f"{file}: {name}.norm_map.{kind}: no mode is named {_shown(mode)}; there are {', '.join(MODES)}")
    return str(mode)


def _normalised(step: dict[str, Any]) -> set[str]:
    """Return the observations that LeRobot's step normalises."""
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
