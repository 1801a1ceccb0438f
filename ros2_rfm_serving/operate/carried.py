"""Files that a process needs from its factory on a machine with nothing but rfm_serving."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from pathlib import Path

from ros2_rfm_serving.factory import Catalogue, CatalogueEntry, Factory
from ros2_rfm_serving.factory.machines import NO_DEVICE
from ros2_rfm_serving.factory.nodes import NodeSpec

WITHOUT_GPU = frozenset({"emulated", "wave", "openai", "remote"})
"""Engines that need no GPU."""
PLACES = {"factory_file": "factory.yaml", "profiles_folder": "profiles"}
"""Parameter that names a file -> place of the file in the folder of all carried files."""


def files(factory: Factory, profiles: Path | None) -> Iterator[tuple[str, str]]:
    """Yield (path in that folder, text). profiles: None means the shipped ones, which are on every machine."""
    yield "factory.yaml", Path(factory.file).read_text(encoding="utf-8")
    if profiles:
        for file in sorted(profiles.iterdir()):
            if file.suffix in (".csv", ".yaml"):
                yield f"profiles/{file.name}", file.read_text(encoding="utf-8")


def moved(node: NodeSpec, folder: str) -> NodeSpec:
    """Return the node with parameters that name the files in that folder."""
    own = {name: f"{folder}/{place}" for name, place in PLACES.items() if name in node.parameters}
    return dataclasses.replace(node, parameters={**node.parameters, **own})


def entries_of(factory: Factory, catalogue: Catalogue) -> list[CatalogueEntry]:
    """Return the catalogue entries of the factory's models. Raises: `ModelError`."""
    models = {c.model for entry in factory.robot_fleet for c in factory.tasks[entry.task].components.values()}
    return [catalogue[model] for model in sorted(models)]


def gpu_of(gpu_type: str, engines: Collection[str]) -> str:
    """Return the GPU type if its servers need a GPU; empty: none of the factory's engines does, or the type is none."""
    return gpu_type if gpu_type not in NO_DEVICE and not set(engines) <= WITHOUT_GPU else ""
