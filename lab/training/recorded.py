"""Recordings of robots (`rfm export`) as demonstrations for `rfm train`.

An action is an example only where a policy chose it: where the fallback ladder was active, or no command was given for a while, the
episode is cut in two, so that no chunk is learnt across the gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from lab.training.demonstrations import ONGOING, Demonstrations
from ros2_rfm_serving.engines.lerobot_format import names_of
from ros2_rfm_serving.errors import ConfigurationError

if TYPE_CHECKING:
    from ros2_rfm_serving.engines.embedded.networks import FlowPolicyConfig

CAMERA = "observation.images."
NEEDED = ("observation.state", "action")
PERIODS_APART = 2.5
"""Gap in control periods from which on commands do not belong to one motion."""


class Recorded(NamedTuple):
    demonstrations: Demonstrations
    """Demonstrations whose `task` is an index into `texts`."""
    texts: tuple[str, ...]
    """Instructions."""


def opened(folder: Path) -> LeRobotDataset:
    """Open a data set. Raises: `ConfigurationError` for a folder without a valid one."""
    if not (folder / "meta" / "info.json").is_file():
        fix = "name a folder that `rfm export --lerobot` wrote"
        raise ConfigurationError("no LeRobotDataset: meta/info.json is missing", file=str(folder), fix=fix)
    try:
        data = LeRobotDataset(folder.name, root=folder)
    except Exception as error:  # LeRobot's own errors are of any type
        raise ConfigurationError(f"LeRobot cannot read it: {error}", file=str(folder), fix="export it again") from error
    missing = [name for name in NEEDED if name not in data.meta.features]
    if missing or not any(name.startswith(CAMERA) for name in data.meta.features):
        raise ConfigurationError(f"it has no {', '.join(missing) or 'images'}", file=str(folder), fix="a policy learns from them")
    try:
        names_of(data.meta.features["action"]["names"])
    except ValueError as error:
        raise ConfigurationError(
            str(error), file=str(folder / "meta" / "info.json"), key="features.action.names", fix="list them"
        ) from error
    return data


def fitted(config: FlowPolicyConfig, features: Mapping[str, Any]) -> FlowPolicyConfig:
    """Return the configuration for robots with fewer state columns: the missing ones are neither read nor predicted."""
    size = features["observation.state"]["shape"][0]
    if size >= config.state_size or not _reads(config) < size:
        return config
    return replace(config, state_size=size, told_columns=tuple(column for column in config.told_columns if column < size))


def _reads(config: FlowPolicyConfig) -> int:
    """Return the last column that a policy reads."""
    return max((*config.state_columns, *(column for pair in config.relative_pairs for column in pair)), default=-1)


def differences(features: Mapping[str, Any], config: FlowPolicyConfig) -> list[str]:
    """Return texts on mismatches of a data set and a policy; empty: it fits."""
    names = names_of(features["action"]["names"])
    size = features["observation.state"]["shape"][0]
    found = []
    if names != config.action_names:
        found.append(f"its actions are {', '.join(names)}, the policy's {', '.join(config.action_names)}")
    if size != config.state_size:
        reads = f", which reads the first {_reads(config) + 1}" if _reads(config) + 1 < config.state_size else ""
        found.append(f"its state has {size} values, the policy's {config.state_size}{reads}")
    side = config.image_size_px
    for camera in config.cameras:
        shape = tuple(features.get(CAMERA + camera, {}).get("shape", ()))
        if not shape:
            found.append(f"it has no camera {camera}")
        elif shape[:2] != (side, side):
            found.append(f"camera {camera} has {shape[1]}x{shape[0]} px, the policy's {side}x{side}")
    return found


def demonstrations(data: LeRobotDataset, cameras: tuple[str, ...]) -> Recorded:
    """Return the demonstrations. Raises: `ConfigurationError` when no policy chose any action."""
    rows = _Rows(cameras, data.fps)
    for at in range(len(data)):
        rows.add(data[at])
    if not rows.steps:
        fix = "record robots that execute chunks"
        raise ConfigurationError("no policy chose any of its actions", file=str(data.root), fix=fix)
    return Recorded(rows.finish(), tuple(rows.texts))


class _Rows:
    def __init__(self, cameras: tuple[str, ...], rate_hz: float) -> None:
        self.texts: dict[str, int] = {}
        self.steps: list[tuple[Any, ...]] = []
        self._cameras, self._gap_s = cameras, PERIODS_APART / rate_hz
        self._frames: list[npt.NDArray[np.uint8]] = []
        self._of: list[tuple[int, int]] = []
        """(task, episode) of each frame."""
        self._episode, self._last, self._last_s = -1, (-1, False), 0.0

    def add(self, item: Mapping[str, Any]) -> None:
        chosen = not item.get("fallback")
        here = int(item["episode_index"]), chosen
        if chosen:
            new = here != self._last or float(item.get("time_s", 0.0)) - self._last_s > self._gap_s
            self._episode += new
            task = self.texts.setdefault(item["task"], len(self.texts))
            self._look(item, task, new=new)
            state, action = item["observation.state"].numpy(), item["action"].numpy()
            self.steps.append((state, action, self._episode, task, len(self._frames) - 1))
        self._last, self._last_s = here, float(item.get("time_s", 0.0))

    def _look(self, item: Mapping[str, Any], task: int, *, new: bool) -> None:
        """Store the images of an item unless they are the same as before: several actions follow from one image."""
        images = np.stack(list(self._pictures(item)))
        if new or not np.array_equal(images, self._frames[-1]):
            self._frames.append(images)
            self._of.append((task, self._episode))

    def _pictures(self, item: Mapping[str, Any]) -> Iterator[npt.NDArray[np.uint8]]:
        for camera in self._cameras:
            picture = item[CAMERA + camera].numpy().transpose(1, 2, 0)
            yield np.rint(picture * 255).astype(np.uint8)

    def finish(self) -> Demonstrations:
        state, action, episode, task, frame = (np.asarray(column) for column in zip(*self.steps, strict=True))
        of = np.asarray(self._of, np.int32)
        return Demonstrations(
            state=state.astype(np.float32),
            action=action.astype(np.float32),
            executed=action.astype(np.float32),
            disturbed=np.zeros(len(state), bool),
            episode=episode.astype(np.int32),
            task=task.astype(np.int32),
            frame=frame.astype(np.int32),
            images=np.stack(self._frames),
            verdict=np.full(len(of), ONGOING, np.int32),
            frame_task=of[:, 0],
            frame_episode=of[:, 1],
        )
