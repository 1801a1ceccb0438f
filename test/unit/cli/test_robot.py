"""`rfm robot --security`: whose certificate each of its processes has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ros2_rfm_serving.cli.robot import _secured
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.factory.dynamic_robot import dynamic_robot_entry
from ros2_rfm_serving.factory.nodes import NodeSpec, robot_nodes
from ros2_rfm_serving.security.folder import CERTIFICATE, KEY, Folder, write_private
from ros2_rfm_serving.security.own import ENCLAVE


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ENCLAVE, "ROS_SECURITY_KEYSTORE", "ROS_SECURITY_ENCLAVE_OVERRIDE"):
        monkeypatch.setenv(name, "")  # and back afterwards
        monkeypatch.delenv(name)


def issued(folder: Path, *members: str) -> Path:
    for member in members:
        for file in (CERTIFICATE, KEY):
            write_private(Folder(folder).enclave(member) / file, b"its")
    return folder


def secured(repository: Path, folder: Path | None) -> list[NodeSpec]:
    factory = load_factory(repository / "config" / "factory_emulated.yaml")
    arm = dynamic_robot_entry(factory, "arm_2", "idle_arm")
    return _secured(robot_nodes(factory, arm, repository / "config", work={}), factory, arm, folder)


def test_the_robot_has_its_own_and_whoever_orders_the_operators(repository: Path, tmp_path: Path) -> None:
    nodes = secured(repository, issued(tmp_path, "operator", "arm_2", "arm_2_world"))
    whose = {node.name: Path(node.environment[ENCLAVE]).name for node in nodes}
    assert whose == {"arm_2_world": "arm_2_world", "arm_2": "arm_2", "arm_2_foreman": "operator"}
    assert os.environ[ENCLAVE] == str(tmp_path / "enclaves" / "operator"), "this process asks for admission"


def test_who_has_none_is_named_with_what_issues_it(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="operator has no certificate there; rfm security init"):
        secured(repository, tmp_path)
    add = rf"rfm security add \S+factory_emulated.yaml {tmp_path} arm_2 --task idle_arm"
    with pytest.raises(ConfigurationError, match=f"arm_2 has no certificate there; {add}"):
        secured(repository, issued(tmp_path, "operator"))
    issued(tmp_path, "arm_2", "arm_2_world")
    (Folder(tmp_path).enclave("arm_2") / KEY).unlink()
    with pytest.raises(ConfigurationError, match=r"arm_2 has a certificate there and no key; .*rotate .* --member arm_2"):
        secured(repository, tmp_path)


def test_a_robot_never_has_the_certificate_of_whoever_starts_it(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(ENCLAVE not in node.environment for node in secured(repository, None)), "a factory without certificates"
    monkeypatch.setenv(ENCLAVE, str(tmp_path / "enclaves" / "operator"))
    with pytest.raises(ConfigurationError, match=r"arm_2 would ask with the certificate in .*operator; give --security DIR"):
        secured(repository, None)
