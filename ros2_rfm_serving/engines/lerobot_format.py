"""Rules of LeRobot's files: names of features, cameras, policy types, and the folders of a training run.

They were read in LeRobot 0.4.0, 0.4.4, 0.5.0, 0.5.1, 0.6.0 and 0.6.1 as they are on the package index, and at 7427f31.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ros2_rfm_serving.errors import ModelError

CONFIG, WEIGHTS = "config.json", "model.safetensors"
PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor.json", "policy_postprocessor.json"
ADAPTER = "adapter_config.json"
NAMELESS = "its names of features have a form that LeRobot does not know"

# --- policy types ----------------------------------------------------------------------------------------------------------

IMPORTED = ("smolvla", "pi0", "pi05")
"""Types of which `rfm import` makes a bundle."""
CHUNKLESS = frozenset({"sac", "gaussian_actor", "sarm", "reward_classifier", "classifier", "topreward", "robometer"})
"""Types without action chunks: actors of reinforcement learning, which 0.6 calls `gaussian_actor`, and reward models."""
SINCE = {
    **dict.fromkeys(("act", "diffusion", "groot", "pi0_fast", "tdmpc", "vqbet", "wall_x", "xvla"), "0.4.4"),
    "multi_task_dit": "0.5.1",
    **dict.fromkeys(("eo1", "evo1", "fastwam", "lingbot_va", "molmoact2", "vla_jepa"), "0.6.0"),
}
"""First release that has a type, of those from 0.4.4 on, by type."""


def served_by(kind: str) -> str:
    """Return the part of this package that serves a policy type."""
    if kind in CHUNKLESS:
        return "it predicts no action chunks, so nothing here serves it"
    if kind in IMPORTED:
        return "`rfm import` makes a bundle of it, and the engine `lerobot` runs it as it is"
    since = SINCE.get(kind)
    if since is None:
        return "the engine `lerobot` runs it where a LeRobot is installed that knows this type"
    needs = "" if since == "0.4.4" else f", with LeRobot {since} or later, which needs Python 3.12"
    return f"the engine `lerobot` runs it{needs}"


RUN = "train_config.json"
"""File that a training run writes beside a checkpoint."""
PADDED_STATE = 32
"""Columns of the state in pi0.5's prompt up to 0.4.4: the default of its step, which saves no configuration in checkpoints."""
RELEASES = ("0.4", "0.5", "0.6")


def is_of_0_4(config: Mapping[str, Any], run: Mapping[str, Any] | None) -> bool | None:
    """Return whether LeRobot 0.4 trained a pi0 or pi0.5, or None if it cannot be told from 0.5.0.

    Configurations have `use_relative_actions` from 0.5.1 on, and `train_config.json` has `cudnn_deterministic` from 0.5.0 on. run:
    `train_config.json`, if there is one.
    """
    if "use_relative_actions" in config:
        return False
    return None if run is None else "cudnn_deterministic" not in run


# --- names -----------------------------------------------------------------------------------------------------------------


def names_of(names: Any) -> tuple[str, ...]:
    """Return the names of a feature's columns, in order, from any form of names; empty if it has none.

    Data sets have lists, lists of lists, groups (`{"motors": [...]}`, `{"axes": ...}`, also nested) and numbers by name (`{"x": 0,
    "y": 1}`). A name that several groups have gets its group as a prefix. Raises: `ValueError` for any other form.
    """
    flat = list(_flat(names, ""))
    bare = [name for _, name in flat]
    if len(set(bare)) == len(bare):
        return tuple(bare)
    return tuple(f"{group}_{name}" if group else name for group, name in flat)


def _flat(names: Any, group: str) -> Iterator[tuple[str, str]]:
    """Yield the group and the name of each column."""
    if names is None:
        return
    if isinstance(names, Mapping):
        yield from _of_groups(names, group)
    elif isinstance(names, list | tuple):
        for name in names:
            yield from _flat(name, group)
    elif isinstance(names, str) or (isinstance(names, int) and not isinstance(names, bool)):
        yield group, str(names)
    else:
        raise ValueError(f"{NAMELESS}: {names!r}")


def _of_groups(names: Mapping[str, Any], group: str) -> Iterator[tuple[str, str]]:
    indices = list(names.values())
    if indices and all(isinstance(index, int) and not isinstance(index, bool) for index in indices):
        if sorted(indices) != list(range(len(indices))):
            raise ValueError(f"{NAMELESS}: {dict(names)!r} does not count its columns from 0")
        for name, _ in sorted(names.items(), key=lambda pair: int(pair[1])):
            yield group, str(name)
        return
    if indices and all(isinstance(name, str) for name in indices) and all(str(key).isdigit() for key in names):
        names = dict(sorted(names.items(), key=lambda pair: int(pair[0])))
    for inner, of_group in names.items():
        yield from _flat(of_group, str(inner))


# --- cameras ---------------------------------------------------------------------------------------------------------------

_EMPTY = re.compile(r"(?:^|\.)empty_camera_\d+$")
"""Features that `empty_cameras` adds, which no robot has."""


class LeRobotCamera(NamedTuple):
    feature: str
    """Name of the feature in the policy."""
    source: str
    """Name of the feature on a LeRobot robot, which the policy's pipeline renames to `feature`."""

    @property
    def name(self) -> str:
        return self.source.removeprefix("observation.").removeprefix("images.")


def cameras_of(
    features: Sequence[str], rename_map: Mapping[str, str], statistics: Collection[str], wished: Sequence[str] = ()
) -> tuple[LeRobotCamera, ...]:
    """Return the cameras that the robot has, in the policy's order.

    features: image features of the policy. A fine-tuned policy keeps those of its base, which may be more than its data set had,
    and names them by its rename map. statistics: features of the data set that trained it, which its normaliser keeps
    (lerobot_train.py: `dataset.meta.stats`). Without statistics of images, a rename map names all cameras. wished: names that the
    user gives. Raises: `ModelError` if the cameras are ambiguous, or the user's names do not fit.
    """
    images = [feature for feature in features if not _EMPTY.search(feature)]
    renamed = {feature: [source for source, own in rename_map.items() if own == feature] for feature in images}
    if wished:
        return _wished(images, renamed, wished)
    seen = {name for feature in images for name in (feature, *renamed[feature]) if name in statistics}
    chosen = []
    for feature in images:
        if not seen and any(renamed.values()) and not renamed[feature]:
            continue
        if seen and not seen & {feature, *renamed[feature]}:
            continue
        sources = [source for source in renamed[feature] if source in seen] or renamed[feature] or [feature]
        if len(sources) > 1:
            names = " and ".join(LeRobotCamera(feature, source).name for source in sources)
            raise ModelError(f"its rename map calls {names} both {feature}: say which cameras the robot has")
        chosen.append(LeRobotCamera(feature, sources[0]))
    return tuple(chosen)


def _wished(images: Sequence[str], renamed: Mapping[str, Sequence[str]], wished: Sequence[str]) -> tuple[LeRobotCamera, ...]:
    """Return known cameras by their names, and others by their place in the policy's order."""
    names = [name.removeprefix("observation.").removeprefix("images.") for name in wished]
    if len(names) > len(images):
        raise ModelError(f"{len(names)} cameras ({', '.join(names)}) for a policy with {len(images)}: {_listed(images)}")
    by_name = {LeRobotCamera(feature, feature).name: LeRobotCamera(feature, feature) for feature in images}
    by_name |= {
        LeRobotCamera(feature, source).name: LeRobotCamera(feature, source) for feature in images for source in renamed[feature]
    }
    if all(name in by_name for name in names):
        chosen = {by_name[name].feature: by_name[name] for name in names}
        if len(chosen) == len(names):
            return tuple(chosen[feature] for feature in images if feature in chosen)
        raise ModelError(f"two of the cameras {', '.join(names)} are the same one of the policy's {_listed(images)}")
    for name, feature in zip(names, images, strict=False):
        if name in by_name and by_name[name].feature != feature:
            place = images.index(by_name[name].feature) + 1
            raise ModelError(f"camera {name!r} is the policy's number {place} of {_listed(images)}: name them in this order")
    return tuple(LeRobotCamera(feature, f"observation.images.{name}") for name, feature in zip(names, images, strict=False))


def _listed(features: Sequence[str]) -> str:
    return ", ".join(LeRobotCamera(feature, feature).name for feature in features)


# --- statistics ------------------------------------------------------------------------------------------------------------


def without_statistics(feature: str, mode: str, known: Collection[str]) -> str:
    """Return the problem of a feature that is to be normalised and has no statistics, which LeRobot then leaves unchanged.

    Published bases have statistics by data set (`so100.buffer.action`), which LeRobot does not read since 0.4
    (huggingface/lerobot#4415).
    """
    endings = (feature, feature.replace(".", "_"))
    found = (name for name in known if name != feature and name.endswith(endings))
    sets = ", ".join(sorted({re.split(r"[._]buffer[._]", name)[0] for name in found}))
    has = (
        f"has statistics of {feature} by data set ({sets}), and LeRobot reads none of them"
        if sets
        else f"has no statistics of {feature}"
    )
    return f"{has}: it is normalised by {mode}, and without them the network's own units would reach the robot"


# --- folders ---------------------------------------------------------------------------------------------------------------


def require_checkpoint(folder: Path) -> None:
    """Check that a folder has the files of a checkpoint. Raises: `ModelError` with the one line that helps."""
    for name in (CONFIG, WEIGHTS, PREPROCESSOR, POSTPROCESSOR):
        if (folder / name).is_file():
            continue
        if (folder / ADAPTER).is_file():
            raise ModelError(f"{folder}: holds an adapter only; merge it into its policy and save that")
        if below := checkpoint_below(folder):
            raise ModelError(f"{folder}: is the folder of a training run: give {below}")
        older = "; LeRobot's migrate_policy_normalization makes it for older checkpoints"
        hint = older if name in (PREPROCESSOR, POSTPROCESSOR) else ""
        raise ModelError(f"{folder}: not a LeRobot checkpoint, {name} is missing{hint}")


def checkpoint_below(folder: Path) -> Path | None:
    """Return the newest checkpoint of a training run, of its `checkpoints`, or of one step; None if it is no such folder."""
    places = [folder / "pretrained_model"]
    for run in (folder / "checkpoints", folder):
        steps = [place for place in run.iterdir() if place.name.isdigit()] if run.is_dir() else []
        places += [place / "pretrained_model" for place in (run / "last", *sorted(steps, key=lambda step: -int(step.name)))]
    if folder.name == "training_state":
        places.append(folder.parent / "pretrained_model")
    return next((place for place in places if (place / CONFIG).is_file()), None)
