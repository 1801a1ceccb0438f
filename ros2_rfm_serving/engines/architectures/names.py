"""Registry of architectures by name.

A new one needs its module, a line here, and a line in the tables of docs/engines.md and docs/reference/engines.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory.yaml_source import did_you_mean

if TYPE_CHECKING:  # without PyTorch at run time, which a list of names does not need
    from ros2_rfm_serving.engines.architectures.base import Architecture

_HERE = "ros2_rfm_serving.engines.architectures"
ARCHITECTURES = {
    "smolvla": f"{_HERE}.smolvla:SmolVla",
    "pi0": f"{_HERE}.pi:Pi0",
    "pi05": f"{_HERE}.pi:Pi05",
    "evo1": f"{_HERE}.evo1:Evo1",
    "bitvla": f"{_HERE}.bitvla:BitVla",
    "groot_n1_5": f"{_HERE}.groot_n1_5:GrootN15",
    "groot_n1_7": f"{_HERE}.groot_n1_7:GrootN17",
    "groot_n1_6": f"{_HERE}.groot_n1_6:GrootN16",
}


def architecture_of(name: str) -> type[Architecture]:
    """Return the class of an architecture. Raises: `ModelError`; `ImportError` if the extra `architectures` is missing."""
    if name not in ARCHITECTURES:
        raise ModelError(f"no architecture is named {name!r}; {did_you_mean(name, list(ARCHITECTURES))}")
    module, _, attribute = ARCHITECTURES[name].partition(":")
    found: type[Architecture] = getattr(import_module(module), attribute)
    return found
