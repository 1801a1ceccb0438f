"""Checkpoints of an interrupted training: weights, their mean, and the optimiser's state, as one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ros2_rfm_serving.engines.embedded import bundle
from ros2_rfm_serving.errors import ConfigurationError


class Checkpoint:
    """Checkpoint in `<out>/checkpoints/<name>.pt`, with the bundle `<out>/<name>`, in which the result so far can be tried."""

    every = 100

    def __init__(self, out: Path, name: str, *, resume: bool) -> None:
        """Open the checkpoint. Raises: `ConfigurationError` when there is none to resume from."""
        self._bundle, self.file = out / name, out / "checkpoints" / f"{name}.pt"
        self.step, self._kept = 0, dict[str, Any]()
        if resume:
            if not self.file.is_file():
                raise ConfigurationError("no checkpoint", file=str(self.file), fix="train without --resume first")
            self._kept = torch.load(self.file, weights_only=True)
            self.step = self._kept["step"]

    def restore(self, parts: Mapping[str, Any]) -> None:
        """Load the state into each part. Raises: `ConfigurationError` when it is of another network."""
        try:
            for name, part in parts.items():
                part.load_state_dict(self._kept[name])
        except (KeyError, RuntimeError, ValueError) as error:
            raise ConfigurationError(f"of another network: {error}", file=str(self.file), fix="train without --resume") from error
        self._kept = {}

    def keep(self, step: int, parts: Mapping[str, Any]) -> None:
        """Write the file atomically."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        partial = self.file.with_suffix(".partial")
        torch.save({"step": step, **{name: part.state_dict() for name, part in parts.items()}}, partial)
        partial.replace(self.file)
        bundle.save(self._bundle, parts["average"])
