"""Training output folder: it receives the embedded models, and their demonstrations are kept below it."""

from __future__ import annotations

import csv
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.console import Console

from lab.training.demonstrations import Demonstrations, Recipe, Rows, collect, show
from lab.training.staged_demonstrations import RECIPE, collect_staged
from lab.training.stages import StageFrames, collect_stages
from ros2_rfm_serving.engines.embedded import bundle
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.worlds.base import Teaching
from ros2_rfm_serving.worlds.metaworld import TASKS

console = Console()
TEXTS = [task.instructions for task in TASKS.values()]
"""Instructions per task."""
USUAL = Recipe()
Network = TypeVar("Network")


class TrainingLog:
    """Log of training figures, on the screen and in `training_log.csv`."""

    def __init__(self, folder: Path, steps: int, begun: int = 0) -> None:
        """begun: steps that a resumed training has done; its log is continued."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.steps, self.begun, self.start_s = folder, steps, begun, time.monotonic()
        self._file = (folder / "training_log.csv").open("a" if begun else "w", newline="")
        self._writer: csv.DictWriter[str] | None = None

    def __call__(self, row: dict[str, float]) -> None:
        elapsed_s = time.monotonic() - self.start_s
        row = {"elapsed_s": round(elapsed_s, 1), **{k: round(v, 6) for k, v in row.items()}}
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, row)
            if not self.begun:
                self._writer.writeheader()
        self._writer.writerow(row)
        self._file.flush()
        left_s = elapsed_s * (self.steps - row["step"]) / (row["step"] - self.begun)
        figures = "  ".join(f"{k} {v:g}" for k, v in row.items() if k not in ("elapsed_s", "step"))
        console.print(f"{self.folder.name}: step {row['step']:.0f}/{self.steps}  {figures}  {left_s / 60:.1f} min left")

    def keep(self, network: bundle.Network) -> None:
        """Write the bundle, and print the time that the training took."""
        content_hash = bundle.save(self.folder, network)
        self._file.close()
        minutes = (time.monotonic() - self.start_s) / 60
        console.print(f"{self.folder}: {minutes:.1f} min, sha256 {content_hash[:12]}")


@dataclass(frozen=True)
class Workshop:
    """Training output folder with its demonstrations, which are collected once per task, number and seed, then read from disk."""

    out: Path
    seed: int
    threads: int
    episodes: int
    """Successful demonstrations per task."""
    staged_episodes: int
    """Demonstrations of the two-stage task."""
    stage_episodes: int
    """Episodes of the two-stage task for judges of its stages."""

    def log(self, name: str, steps: int) -> TrainingLog:
        return TrainingLog(self.out / name, steps)

    def demonstrations(self, tasks: Sequence[str] = tuple(TASKS), recipe: Recipe = USUAL) -> Demonstrations:
        """Return the demonstrations of these tasks. recipe: its number and seed are replaced by those of the folder."""
        recipe = replace(recipe, episodes_per_task=self.episodes, seed=self.seed)
        files = {task: self._file(f"{task}-{self.episodes}") for task in tasks}
        missing = [task for task, file in files.items() if not file.exists()]
        with ProcessPoolExecutor(self.threads, mp_context=multiprocessing.get_context("spawn")) as pool:
            jobs = [pool.submit(_collect, task, recipe, tasks, files[task]) for task in missing]
            for job in as_completed(jobs):
                console.print(f"demonstrations of {job.result()}: {self.episodes} episodes")
        return Demonstrations.join([Demonstrations.load(str(file)) for file in files.values()])

    def demonstrations_of(self, arm: Teaching, task: str) -> Demonstrations:
        """Return demonstrations of a robot's expert."""
        file = self._file(f"{task}-{self.episodes}")
        if not file.exists():
            rows, recipe = Rows(0), Recipe(episodes_per_task=self.episodes, seed=self.seed)
            show(arm, task, recipe, np.random.default_rng([self.seed, 0]), rows)
            _save(rows.finish(), file)
            console.print(f"demonstrations of {task}: {self.episodes} episodes")
        return Demonstrations.load(str(file))

    def staged_demonstrations(self) -> Demonstrations:
        file = self._file(f"staged-{self.staged_episodes}")
        if not file.exists():
            _save(collect_staged(replace(RECIPE, episodes_per_task=self.staged_episodes, seed=self.seed)), file)
            console.print(f"demonstrations of the two-stage task: {self.staged_episodes} episodes")
        return Demonstrations.load(str(file))

    def stage_frames(self) -> StageFrames:
        file = self._file(f"stages-{self.stage_episodes}")
        if not file.exists():
            _save(collect_stages(self.stage_episodes, self.seed), file)
            console.print(f"frames of the two-stage task: {self.stage_episodes} episodes")
        return StageFrames.load(str(file))

    def _file(self, stem: str) -> Path:
        folder = self.out / "demonstrations"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{stem}-{self.seed}.npz"


def shipped_network(name: str, kind: type[Network]) -> Network:
    """Return the network of a bundle that the package contains."""
    network, _ = bundle.load(shipped("models", name))
    assert isinstance(network, kind)
    return network


def _collect(task: str, recipe: Recipe, among: Sequence[str], file: Path) -> str:
    _save(collect(task, recipe, among), file)
    return task


def _save(data: Demonstrations | StageFrames, file: Path) -> None:
    """Write the file atomically."""
    partial = file.with_suffix(".partial.npz")
    data.save(str(partial))
    partial.replace(file)
