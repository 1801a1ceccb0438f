"""Interface of importers, and the description of a checkpoint that they return; `importing.py` makes a bundle of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from ros2_rfm_serving.engines.architectures.manifest import BundleManifest
from ros2_rfm_serving.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Options for information that a checkpoint may lack."""

    action_names: tuple[str, ...] = ()
    cameras: tuple[str, ...] = ()
    """Robot's names of the cameras, in the network's order."""
    state_size: int = 0
    state_words: int = 0
    """Columns of the state in pi0.5's prompt, padded; 0 for as many as it has."""
    relative: tuple[str, ...] = ()
    """Names of actions that are relative to the state (openpi)."""
    raw_units: bool = False
    """True if states and actions without statistics of their robot are taken as they are in the network (LeRobot)."""
    release: str = ""
    """LeRobot release that trained the checkpoint, if the checkpoint does not tell it."""
    control_rate_hz: float = 0.0
    tokenizer: Path | None = None
    """Folder with `tokenizer.json`, or the file."""
    licence: str = ""
    kind: str = ""
    """Choice among several configurations of the importer; empty for the checkpoint's own."""
    assets: str = ""
    """Folder below `assets/` whose statistics count (openpi)."""
    chunk_length: int = 0
    """Number of actions of a chunk, if the checkpoint does not tell it (openpi); 0 if it does."""
    discrete_state_input: bool | None = None
    """Whether pi0.5 was trained with the state in its prompt (openpi); None if unknown, which counts as yes."""
    state_keys: tuple[str, ...] = ()
    """Keys of the state in the network's order (GR00T N1.5); empty for those of the checkpoint."""
    action_keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Imported:
    manifest: BundleManifest
    weights: Mapping[str, Tensor]
    """Weights, by our names."""
    tokenizer: str
    """Content of `tokenizer.json`."""
    files: tuple[Path, ...]
    """Files of the checkpoint that were read; the model card has their hash."""
    notes: tuple[str, ...] = ()
    """Notes on parts of the checkpoint that are not in the bundle."""


class Importer(Protocol):
    """Interface of an importer, which is a module. A new one is added to `IMPORTERS` in `importing.py`."""

    def recognises(self, folder: Path) -> bool:
        """Return whether a folder holds a checkpoint of this kind, by names of files and the content of its JSON."""

    def read(self, folder: Path, wishes: ImportOptions) -> Imported:
        """Read a checkpoint. Raises: `ModelError` that names the file, the key, its problem and the fix."""


Rule = tuple[str, str]
"""Regular expression that matches a whole name of theirs, and our name with its groups; an empty name leaves the weight out."""


def renamed(weights: Mapping[str, Tensor], rules: Sequence[Rule], file: Path) -> dict[str, Tensor]:
    """Return weights by our names; the first rule that matches counts.
    Raises: `ModelError` that names all weights without a rule."""
    compiled = [(re.compile(pattern), ours) for pattern, ours in rules]
    found: dict[str, Tensor] = {}
    unknown: list[str] = []
    for name, tensor in weights.items():
        match, ours = next(((m, ours) for pattern, ours in compiled if (m := pattern.fullmatch(name))), (None, ""))
        if match is None:
            unknown.append(name)
        elif ours:
            if (own := match.expand(ours)) in found:
                raise ModelError(f"{file}: {name}: there is another for the same place, by our name {own}")
            found[own] = tensor
    if unknown:
        raise ModelError(f"{file}: {len(unknown)} unknown weights: {listed(unknown)}; it is of another architecture or release")
    return found


def listed(names: Iterable[str], most: int = 5) -> str:
    names = sorted(names)
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
