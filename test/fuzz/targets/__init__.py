"""What is fuzzed: one module per target, with valid inputs to begin with, and a check that raises only when something is wrong.

`seeds() -> list[bytes]`, written by the product's own writers; `check(data)`, which lets through no exception that is not
documented, and shows that after any bad input the next good one is served.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

NAMES = (
    "cdr",
    "messages",
    "gateway",
    "images",
    "server",
    "descriptor",
    "catalogue",
    "profiles",
    "audit",
    "bag",
    "orders",
    "texts",
    "zenoh",
)


class Target(NamedTuple):
    seeds: Callable[[], list[bytes]]
    check: Callable[[bytes], None]


def target(name: str) -> Target:
    module = import_module(f"{__name__}.{name}")
    return Target(module.seeds, module.check)
