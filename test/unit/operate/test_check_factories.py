"""What `rfm check` calls valid `rfm up` takes: shipped descriptors are changed to wrong values, checked and planned."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from ros2_rfm_serving.cli.check import check
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.operate.run import checked_nodes
from ros2_rfm_serving.operate.running import Options
from ros2_rfm_serving.shipped import shipped

FACTORIES = ("factory_full.yaml", "factory_quickstart.yaml")
SAMPLED = 40
"""Changed descriptors of each, without the mark `thorough`: about one in twelve is valid."""
WRONG: tuple[Any, ...] = ("nonsense", [], {}, [1, 0.5], True, 10**12, -1, 0, float("nan"), None)
Key = tuple[str | int, ...]


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """`rfm up` chooses a profile of the middleware for its processes."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def keys_of(tree: Any, path: Key = ()) -> Iterator[Key]:
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in pairs:
        yield (*path, key)
        yield from keys_of(value, (*path, key))


def changed(tree: Any) -> Iterator[tuple[str, Any]]:
    for *path, key in keys_of(tree):
        for wrong in WRONG:
            yield f"{path}.{key}: {wrong!r}", _with(tree, path, key, wrong)
        if isinstance(key, str):
            other = copy.deepcopy(tree)
            section = _at(other, path)
            section[f"{key[:-1]}z"] = section.pop(key)
            yield f"{path}.{key} is misspelt", other


def _at(tree: Any, path: list[str | int]) -> Any:
    for part in path:
        tree = tree[part]
    return tree


def _with(tree: Any, path: list[str | int], key: str | int, value: Any) -> Any:
    made = copy.deepcopy(tree)
    _at(made, path)[key] = value
    return made


def refused_by_up(cases: list[tuple[str, Any]], folder: Path) -> tuple[list[str], int]:
    """Return the changes that the check takes and `rfm up` refuses, and how many changes the check took."""
    file, refused, taken = folder / "factory.yaml", [], 0
    for change, tree in cases:
        file.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
        try:
            check(file)
        except (RfmError, typer.Exit):
            continue
        taken += 1
        try:
            checked_nodes(load_factory(file).on_one_machine(), Options(logs=folder, work={}))
        except RfmError as error:
            refused.append(f"{change}: {error}")
    return refused, taken


def shipped_tree(name: str) -> Any:
    return yaml.safe_load(shipped("config", name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FACTORIES)
def test_what_check_calls_valid_up_takes(tmp_path: Path, name: str) -> None:
    tree = shipped_tree(name)
    cases = [("as it ships", tree), *random.Random(name).sample(list(changed(tree)), SAMPLED)]
    refused, taken = refused_by_up(cases, tmp_path)
    assert taken > 1 and not refused


@pytest.mark.thorough
@pytest.mark.parametrize("name", FACTORIES)
def test_every_changed_descriptor_that_check_calls_valid_up_takes(tmp_path: Path, name: str) -> None:
    refused, taken = refused_by_up(list(changed(shipped_tree(name))), tmp_path)
    assert taken >= 20 and not refused
