"""Keys are set in a user's text, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.yaml_edit import with_key

VALUE = {"pp_perception": 1, "pp_generation": 4, "alpha": 0.5, "fetch_offset": -1}
FLOW = "{pp_perception: 1, pp_generation: 4, alpha: 0.5, fetch_offset: -1}"
PATH = ("push", "execution", "pipelining")


def test_into_braces() -> None:
    text = "# mine\npush:\n  execution: {mode: async}   # why\n  value: 2\n"
    edited = with_key(text, PATH, VALUE, "f")
    assert edited == f"# mine\npush:\n  execution: {{mode: async, pipelining: {FLOW}}}   # why\n  value: 2\n"


def test_into_a_block() -> None:
    text = "push:\n  execution:\n    # how\n    mode: async  # why\n  value: 2\n"
    edited = with_key(text, PATH, VALUE, "f")
    assert edited == f"push:\n  execution:\n    # how\n    pipelining: {FLOW}\n    mode: async  # why\n  value: 2\n"


def test_with_its_parent() -> None:
    edited = with_key("push:\n  value: 2  # much\n", PATH, VALUE, "f")
    assert edited == f"push:\n  execution: {{pipelining: {FLOW}}}\n  value: 2  # much\n"


@pytest.mark.parametrize(
    "old",
    [
        "pipelining: {alpha: 1}  # of yesterday\n",
        "pipelining:  # of yesterday\n      alpha: 1  # skewed\n      pp_generation: 2\n",
    ],
)
def test_in_place_of_what_is_there(old: str) -> None:
    text = f"push:\n  execution:\n    {old}    mode: async  # why\n"
    edited = with_key(text, PATH, VALUE, "f")
    assert yaml.safe_load(edited)["push"]["execution"] == {"pipelining": VALUE, "mode": "async"}
    assert edited.endswith("    mode: async  # why\n")


def test_not_under_an_alias() -> None:
    text = "reach: &one\n  execution: {mode: async}\npush: *one\n"
    with pytest.raises(ConfigurationError, match=r"pipelining: \{pp_perception: 1"):
        with_key(text, PATH, VALUE, "f")


def test_in_every_shipped_descriptor() -> None:
    for file in Path("config").glob("factory_*.yaml"):
        text = file.read_text()
        for task, data in yaml.safe_load(text).items():
            if isinstance(data, dict) and "components" in data:
                edited = with_key(text, (task, "execution", "pipelining"), VALUE, str(file))
                assert edited.count("#") == text.count("#")


def test_a_key_without_a_value_gets_one() -> None:
    for text, want in (("a:\n  b:\n  c: 1\n", "a:\n  b: {x: 1}\n  c: 1\n"), ("a: {b: , c: 1}\n", "a: {b: {x: 1} , c: 1}\n")):
        assert with_key(text, ("a", "b"), {"x": 1}, "f.yaml") == want


def test_line_ends_are_the_files() -> None:
    assert with_key("a:\r\n  c: 1\r\n", ("a", "b"), {"x": 1}, "f.yaml") == "a:\r\n  b: {x: 1}\r\n  c: 1\r\n"
