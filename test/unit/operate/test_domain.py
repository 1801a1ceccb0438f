"""`--domain` and `--namespace` of every verb that looks at the graph."""

from __future__ import annotations

import os
import re

import pytest

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.running import prepare_environment
from ros2_rfm_serving.ros.wire.qos import Names


@pytest.mark.parametrize(("option", "variable"), [(233, ""), (999, "7"), (-1, "seven"), (-1, "-3"), (-1, "500")])
def test_a_domain_that_there_is_not(monkeypatch: pytest.MonkeyPatch, option: int, variable: str) -> None:
    """DDS would end the command with a page of its own."""
    monkeypatch.setenv("ROS_DOMAIN_ID", variable)
    with pytest.raises(ConfigurationError, match=re.escape(f"no ROS domain '{option if option >= 0 else variable}'")):
        prepare_environment(option)


def test_the_option_comes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", "7")
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    prepare_environment(-1)
    assert os.environ["ROS_DOMAIN_ID"] == "7"
    prepare_environment(232)
    assert os.environ["ROS_DOMAIN_ID"] == "232"


@pytest.mark.parametrize("namespace", ["a b", "/a//b", "1st", "a-b", "a__b", "{robot}", "~", "a\n", "\u00e9"])
def test_a_namespace_that_ros_does_not_take(namespace: str) -> None:
    with pytest.raises(ConfigurationError, match="is no namespace"):
        Names(namespace)


@pytest.mark.parametrize(
    ("namespace", "schedule"), [("", "/rfm/schedule"), ("/", "/rfm/schedule"), ("/a/b_2/", "/a/b_2/rfm/schedule")]
)
def test_a_namespace(namespace: str, schedule: str) -> None:
    assert Names(namespace).schedule == schedule
