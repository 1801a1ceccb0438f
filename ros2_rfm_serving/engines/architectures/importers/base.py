"""What an importer says of a checkpoint; `importing.py` makes a bundle of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from ros2_rfm_serving.engines.architectures.manifest import Manifest
from ros2_rfm_serving.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a checkpoint may not say."""

    action_names: tuple[str, ...] = ()
    cameras: tuple[str, ...] = ()
    """As the robot names them, in the network's order"""
    state_size: int = 0
    state_words: int = 0
    """Columns of the state in pi0.5's prompt, padded; 0: as many as it has"""
    relative: tuple[str, ...] = ()
    """Actions that are counted from the state (openpi), by name"""
    raw_units: bool = False
    """Without statistics of its robot, states and actions are taken as the network has them (LeRobot)"""
    release: str = ""
    """LeRobot release that trained it, where the checkpoint does not say"""
    control_rate_hz: float = 0.0
    tokenizer: Path | None = None
    """Folder with `tokenizer.json`, or the file"""
    licence: str = ""
    kind: str = ""
    """Which of several configurations of its importer; empty: as the checkpoint says"""
    assets: str = ""
    """Folder below `assets/` whose statistics count (openpi)"""
    chunk_length: int = 0
    """Actions of a chunk, where the checkpoint does not say it (openpi); 0: it says it"""
    discrete_state_input: bool | None = None
    """Whether pi0.5 was trained with the state in its prompt (openpi); None: not said, and then it is taken to be so"""
    state_keys: tuple[str, ...] = ()
    """Keys of the state in the network's order (GR00T N1.5); empty: as the checkpoint has them"""
    action_keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Imported:
    manifest: Manifest
    weights: Mapping[str, Tensor]
    """By our names"""
    tokenizer: str
    """What `tokenizer.json` says"""
    files: tuple[Path, ...]
    """Of the checkpoint, that were read: their hash goes onto the card"""
    notes: tuple[str, ...] = ()
    """What is not in the bundle"""


class Importer(Protocol):
    """A module. Add yours to `IMPORTERS` in `importing.py`."""

    def recognises(self, folder: Path) -> bool:
        """By names of files and what their JSON says."""

    def read(self, folder: Path, wishes: Wishes) -> Imported:
        """Raises: `ModelError` that names the file, the key, what is missing and how to help it."""


Rule = tuple[str, str]
"""A regular expression that matches a whole name of theirs -> ours, with its groups; empty: it is left out."""


def renamed(weights: Mapping[str, Tensor], rules: Sequence[Rule], file: Path) -> dict[str, Tensor]:
    """The first rule that matches counts. Raises: `ModelError` that names all that no rule knows."""
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
