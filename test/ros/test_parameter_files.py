"""A robot's file means to `rfm check` and `rfm up` what it means to a node that ROS gives it to: rcl's own parser is the judge."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import rclpy
from rclpy.context import Context
from rclpy.node import Node

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.robot_file import RobotFile

SCALARS = """
1 -1 +1 0 0x1F -0x1f 0X1f 0x 0b11 1_000 9223372036854775807 9223372036854775808 -9223372036854775808
1:30 10:20:30
1.0 -1.5 .5 5. +.5 1e3 1e-3 2e0 -1E5 1.5e3 1.5e+3 1e 1e+ 1e400 -1e400 1e-400 1e-310 0e-400 2.3e-308
1.7976931348623157e308 0x1p3 0x1.8 0x.8 0x1p-1080
.nan .NaN .NAN .inf .Inf .INF +.inf -.inf -.INF .Nan -.nan inf -inf Infinity INF nan NaN nan(1) infinite
y Y n N yes Yes YES yEs no No NO true True TRUE tRUE false False FALSE on On ON off Off OFF t f
null Null NULL ~ 2026-01-01 2026-01-01T00:00:00Z abc 1.2.3 1,5 1d5 1f 12abc 3m 0.5s << =
'1' "1.5" 'y' "true" '' "" !!str&1 !!float&1 !!int&1.5 !!bool&abc
""".replace("&", "\x00").split()


OWN = ("use_sim_time", "start_type_description_service")
"""Parameters that every node has."""


def of_ros(text: str, folder: Path, namespace: str = "/") -> dict[str, Any]:
    """Return the parameters that rcl reads from a file. Raises: whatever rclpy raises when rcl refuses it."""
    file = folder / "ros.yaml"
    file.write_text(text)
    context = Context()
    rclpy.init(args=["--ros-args", "--params-file", str(file), "-r", f"__ns:={namespace}"], context=context)
    try:
        node = Node(
            "reader",
            context=context,
            automatically_declare_parameters_from_overrides=True,
            start_parameter_services=False,
            enable_rosout=False,
        )
        try:
            found = {name: parameter.value for name, parameter in node.get_parameters_by_prefix("").items()}
        finally:
            node.destroy_node()
    finally:
        rclpy.try_shutdown(context=context)
    found = {name: value for name, value in found.items() if name not in OWN}
    return {
        name: list(value) if not isinstance(value, (bool, int, float, str, type(None))) else value for name, value in found.items()
    }


def of_ours(text: str, folder: Path, node: str = "") -> dict[str, Any]:
    file = folder / "ours.yaml"
    file.write_text(text)
    return dict(RobotFile.read(file, node).parameters)


def written(lines: list[str]) -> str:
    return "/**:\n  ros__parameters:\n" + "".join(f"    {line}\n" for line in lines)


def same(one: Any, other: Any) -> bool:
    both_nan = isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
    return both_nan or (type(one) is type(other) and one == other)


def test_every_plain_scalar_is_what_ros_reads(ros_domain: int, tmp_path: Path) -> None:
    values = [value.replace("\x00", " ") for value in SCALARS]
    text = written([f"p{number}: {value}" for number, value in enumerate(values)])
    ros, ours = of_ros(text, tmp_path), of_ours(text, tmp_path)
    differing = {
        value: (ours.get(f"p{number}"), ros.get(f"p{number}"))
        for number, value in enumerate(values)
        if f"p{number}" in ros and not same(ours.get(f"p{number}"), ros[f"p{number}"])
    }
    assert len(ros) > 100 and not differing


FORMS = {
    "nested": ["gate: {jump: hold, deep: {er: 1e-3}}", "gate.limits: [0.5, 1e3]"],
    "list of numbers": ["a: [1, 2]", "b: [1.0, 2e0]", "c: [y, n]", "d: [abc, 'y']"],
    "keys are texts": ["1: abc", "yes: 2", "1.5: 3"],
    "block text": ["a: |\n      5", "b: >-\n      7", "c: |-\n      1e3"],
    "over several lines": ["a: [1,\n      2]", "b:\n      - x\n      - z"],
    "an anchor nobody uses": ["a: &name 5"],
}
REFUSED = {
    "whole numbers beside others": "a: [1, 0.5]",
    "numbers beside others that are read as text": "a: [1.5, 1e400]",
    "texts beside truth values": "a: [abc, y]",
    "an empty value": "a:",
    "an empty value in a map": "a: {b: }",
    "an empty value in a list": "a: [1, ]\n    b: [x, , z]",
    "a list in a list": "a: [[1, 2], [3]]",
    "an alias": "a: &x 5\n    b: *x",
    "a merge": "a: &x {b: 1}\n    c: {<<: *x}",
    "a list as a key": "[a]: 5",
    "a map as a key": "a: {{b: 1}: 5}",
    "a colon in a list": "a: [ramp_down:0.3, zero]",
}
DIRECTIVES = {"%YAML 1.1": True, "%TAG ! tag:example.org,2026:": True, "%YAML 1.2": False, "%YAML 1.0": False, "%OTHER 1.1": False}
MISREAD = ("007", "010", "08", "-010", "0o10")
"""ROS reads 7, 8, 8.0, -8 and a text."""


@pytest.mark.parametrize("form", FORMS)
def test_forms_that_ros_reads_are_read_alike(ros_domain: int, tmp_path: Path, form: str) -> None:
    text = written(FORMS[form])
    ros, ours = of_ros(text, tmp_path), of_ours(text, tmp_path)
    assert ros and ours.keys() == ros.keys() and all(same(ours[name], ros[name]) for name in ros), (ours, ros)


def test_a_parameter_that_is_written_twice_is_refused_where_ros_keeps_the_later_one(ros_domain: int, tmp_path: Path) -> None:
    text = written(["gate: {jump: hold}", "gate.jump: scale"])
    assert of_ros(text, tmp_path) == {"gate.jump": "scale"}
    with pytest.raises(ConfigurationError, match="is written twice"):
        of_ours(text, tmp_path)


@pytest.mark.parametrize("directive", DIRECTIVES)
def test_directives_that_ros_refuses_are_refused_with_their_line(ros_domain: int, tmp_path: Path, directive: str) -> None:
    text = f"# of a robot\n{directive}\n---\n{written(['a: 5'])}"
    if DIRECTIVES[directive]:
        assert of_ros(text, tmp_path) == of_ours(text, tmp_path) == {"a": 5}
        return
    with pytest.raises(Exception):  # noqa: B017  rclpy has no exception of its own for it
        of_ros(text, tmp_path)
    with pytest.raises(ConfigurationError, match=r"ours\.yaml:2: .*ROS reads YAML 1\.1 alone.*remove the line"):
        of_ours(text, tmp_path)


@pytest.mark.parametrize("form", REFUSED)
def test_what_ros_refuses_is_refused_with_its_key(ros_domain: int, tmp_path: Path, form: str) -> None:
    text = written([REFUSED[form]])
    with pytest.raises(Exception):  # noqa: B017  rclpy has no exception of its own for it
        of_ros(text, tmp_path)
    with pytest.raises(ConfigurationError) as refused:
        of_ours(text, tmp_path)
    assert "ours.yaml:" in str(refused.value)


@pytest.mark.parametrize("number", MISREAD)
def test_a_number_that_ros_reads_otherwise_than_its_writer_is_refused(tmp_path: Path, number: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"ours\.yaml:3: /\*\*\.ros__parameters\.a: `{number}`"):
        of_ours(written([f"a: {number}"]), tmp_path)


def test_a_map_in_a_list_which_ros_reads_as_nothing_sensible_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"ours\.yaml:3: /\*\*\.ros__parameters\.a: .*no lists, maps or empty values"):
        of_ours(written(["a: [{b: 1}]"]), tmp_path)


SECTIONS = (
    *(
        "/**",
        "/*",
        "/*/*",
        "/r1/*",
        "/*/reader",
        "/r1/reader",
        "/r1/**",
        "reader",
        "r1/reader",
        "**",
        "*",
        "/**/reader",
        "**/reader",
    ),
    *("/reader", "/r1", "/**/r1/reader", "/**/*", "/*/**", "/r1/reader/**", "/r1/**/reader", "/r2/reader", "/r1/reader/x"),
)


def test_sections_count_for_the_nodes_for_which_they_count_in_ros(ros_domain: int, tmp_path: Path) -> None:
    for section in SECTIONS:
        text = f"'/**':\n  ros__parameters: {{a: 1, b: 1}}\n'{section}':\n  ros__parameters: {{b: 2}}\n"
        if section == "/**":
            text = "/**:\n  ros__parameters: {a: 1, b: 2}\n"
        assert of_ros(text, tmp_path, "/r1") == of_ours(text, tmp_path, "/r1/reader"), section


def test_the_later_section_counts_as_in_ros(ros_domain: int, tmp_path: Path) -> None:
    first, second = "/r1/reader:\n  ros__parameters: {a: 1, c: 1}\n", "/**:\n  ros__parameters: {a: 2}\n"
    text = f"{first}{second}r1:\n  reader:\n    ros__parameters: {{b: 3}}\n"
    assert of_ros(text, tmp_path, "/r1") == of_ours(text, tmp_path, "/r1/reader") == {"a": 2, "b": 3, "c": 1}


@pytest.mark.parametrize("section", ["r*/reader", "/r1/read*", "/r-1/reader"])
def test_a_section_that_ros_refuses_is_refused_with_its_line(ros_domain: int, tmp_path: Path, section: str) -> None:
    text = f"/**:\n  ros__parameters: {{a: 1}}\n{section}:\n  ros__parameters: {{a: 2}}\n"
    with pytest.raises(Exception):  # noqa: B017  rclpy has no exception of its own for it
        of_ros(text, tmp_path, "/r1")
    with pytest.raises(ConfigurationError, match=r"ours\.yaml:3: .*no name of a node"):
        of_ours(text, tmp_path, "/r1/reader")


def test_namespaces_above_a_node(ros_domain: int, tmp_path: Path) -> None:
    text = "/**:\n  '*':\n    ros__parameters:\n      a: 1\n"
    assert of_ours(text, tmp_path) == {"a": 1}
