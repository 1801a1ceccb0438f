"""Numbers of a user's file mean what their writer sees, or are refused with file, key, value and fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import parse_factory, yaml_source
from ros2_rfm_serving.factory.catalogue import Catalogue
from ros2_rfm_serving.factory.robot_file import RobotFile
from ros2_rfm_serving.ros.server.websocket_settings import _map as map_parameter

FACTORY = """\
server_cluster: {num_servers: 1, gpu_type: CPU}
robot_fleet: [{task: carry, num_robots: %s}]
carry:
  pipeline: {action_period_ms: %s}
  components:
    system1: {model: %s}
"""


def refused(text: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as error:
        parse_factory(text, "f.yaml")
    return error.value


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        ("010", "`10`"),
        ("08", "`8`"),
        ("-010", "`-10`"),
        ("0o10", "`10`"),
        ("0_1", "`1`"),
        ("1:30", "units"),
        ("+1:30:00", "units"),
        ("1_000", "`1000`"),
        ("0b11", "`3`"),
        ("0b1_1", "`3`"),
        ("99999999999999999999", "smaller"),
        ("0x8000000000000000", "smaller"),
        ("yes", "'yes'"),
        ("on", "'on'"),
        ("true", "'true'"),
    ],
)
def test_a_number_of_robots_that_can_be_misread_is_refused(number: str, fix: str) -> None:
    error = refused(FACTORY % (number, 100, "m"))
    assert (error.file, error.line, error.key) == ("f.yaml", 2, "robot_fleet[0].num_robots")
    assert f"`{number}`" in error.problem and fix in error.fix, error


@pytest.mark.parametrize("number", ['"010"', "'1:30'", "1_000"])
def test_quotes_do_not_hide_a_number_that_has_a_tag(number: str) -> None:
    error = refused(FACTORY % (f"!!int {number}", 100, "m"))
    assert error.key == "robot_fleet[0].num_robots" and number.strip("'\"") in error.problem and "YAML" in error.problem, error


@pytest.mark.parametrize("number", ["1:30.5", "1_000.5", "010", "0_1.5", "off"])
def test_a_period_that_can_be_misread_is_refused(number: str) -> None:
    error = refused(FACTORY % (1, number, "m"))
    assert error.key == "carry.pipeline.action_period_ms" and f"`{number}`" in error.problem, error


@pytest.mark.parametrize("word", ["yes", "no", "On", "OFF"])
def test_a_word_that_yaml_reads_as_true_or_false_is_no_text_and_no_key(word: str) -> None:
    error = refused(FACTORY % (1, 100, word))
    assert error.key == "carry.components.system1.model" and f"`{word}`" in error.problem and f"'{word}'" in error.fix, error
    error = refused(FACTORY % (1, 100, "m") + f"{word}: 1\n")
    assert error.line == 7 and f"`{word}`" in error.problem and f"'{word}'" in error.fix, error


@pytest.mark.parametrize(("robots", "period"), [("12", "100.5"), ("0x1F", "1.5e+3"), ("10", "1e3"), ("'8'", "0.25e+3")])
def test_what_everybody_reads_alike_is_taken(robots: str, period: str) -> None:
    factory = parse_factory(FACTORY % (robots, period, "'010'"), "f.yaml")
    assert len(factory.robots) == int(robots.strip("'"), 0)
    assert factory.tasks["carry"].pipeline.action_period_ms == float(period)
    assert factory.tasks["carry"].components["system1"].model == "010"


@given(st.integers(-(10**12), 10**12))
def test_any_whole_number_is_what_is_written(number: int) -> None:
    assert yaml_source.parse(f"a: {number}\n", "f.yaml").data == {"a": number}


@given(st.from_regex(r"[-+]?[0-9_:.ox]{1,12}", fullmatch=True))
def test_a_number_that_is_taken_is_the_one_that_is_written(text: str) -> None:
    """A decimal number means its digits; everything else is text, or is refused."""
    try:
        value = yaml_source.parse(f"a: {text}\n", "f.yaml").data["a"]
    except ConfigurationError:
        return
    if isinstance(value, int | float):
        assert value == (int(text, 16) if "x" in text else float(text))


def test_other_files_that_users_write_have_the_same_rule(tmp_path: Path) -> None:
    models, robot = tmp_path / "models.yaml", tmp_path / "robot.yaml"
    models.write_text("models:\n  m:\n    engine: e\n    gpus: {CPU: {memory_gb: 010, load_s: 0, source: s}}\n")
    with pytest.raises(ConfigurationError, match=r"models.yaml:4: models.m.gpus.CPU.memory_gb: `010`"):
        Catalogue.load(models)
    robot.write_text("/**:\n  ros__parameters:\n    state_size: 010\n    instruction: 1:30\n")
    models.write_text("models:\n  m:\n    engine: e\n    gpus: {CPU: {memory_gb: yes, load_s: 0, source: s}}\n")
    with pytest.raises(ConfigurationError, match=r"models.yaml:4: models.m.gpus.CPU.memory_gb: `yes` is a truth value"):
        Catalogue.load(models)
    with pytest.raises(ConfigurationError, match=r"robot.yaml:3: .*state_size: `010`"):
        RobotFile.read(robot)
    with pytest.raises(ConfigurationError, match=r"gateway_chunks.*`010`"):
        map_parameter("gateway_chunks", "{arm: 010}")


def test_numbers_in_robot_files_are_those_of_ros(tmp_path: Path) -> None:
    """`1:30` and `1_000` are text to ROS, which its types refuse where a number is meant."""
    file = tmp_path / "robot.yaml"
    file.write_text("/**:\n  ros__parameters:\n    instruction: 1:30\n    state_size: 6\n    rate: 1e-3\n")
    assert RobotFile.read(file).parameters == {"instruction": "1:30", "state_size": 6, "rate": 1e-3}


@pytest.mark.parametrize(("text", "number"), [("1e3", 1000.0), ("1e-3", 0.001), ("0.5E2", 50.0), ("-.5e1", -5.0)])
def test_an_exponent_makes_a_number_where_no_type_says_so(text: str, number: float) -> None:
    """Options of models and policies are handed on as the file has them."""
    found = yaml_source.parse(f"options: {{temperature: {text}, other: [{text}], quoted: '{text}'}}\n", "f.yaml").data["options"]
    assert found == {"temperature": number, "other": [number], "quoted": text}


@pytest.mark.parametrize("text", ["12e99999", "e3", "1e", "1e3x", "v1e3"])
def test_text_that_only_resembles_an_exponent_stays_text(text: str) -> None:
    assert yaml_source.parse(f"a: {text}\n", "f.yaml").data == {"a": text}
