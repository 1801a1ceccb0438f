"""Two machines have the same descriptor, or it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from ros2_rfm_serving.factory import load_factory, parse_factory
from ros2_rfm_serving.factory.descriptor_mismatch import descriptor_mismatch
from ros2_rfm_serving.factory.nodes import node_list


def test_what_a_file_says_is_what_counts(repository: Path) -> None:
    text = (repository / "config" / "factory_quickstart.yaml").read_text()
    same = parse_factory("# of machine B\n" + text.replace("num_servers: 2", "num_servers:    2"), "elsewhere.yaml")
    own = parse_factory(text)
    assert own.fingerprint == same.fingerprint and len(own.fingerprint) == 64
    for before, after in (("slo_ms: 400", "slo_ms: 401"), ("freq_hz: 2", "freq_hz: 2.5"), ("num_robots: 1", "num_robots: 2")):
        assert parse_factory(text.replace(before, after, 1)).fingerprint != own.fingerprint, after


def test_every_server_and_robot_knows_its_own(repository: Path) -> None:
    factory = load_factory(repository / "config" / "factory_hosts.yaml")
    told = {node.executable: node.parameters.get("descriptor") for node in node_list(factory, repository / "config", work={})}
    assert told["model_server_node"] == told["robot_node"] == factory.fingerprint
    assert told["scheduler_node"] is None, "it reads the file itself"


@pytest.mark.parametrize(("own", "followed"), [("", "a"), ("a", ""), ("a", "a"), ("", "")])
def test_what_is_not_known_is_no_difference(own: str, followed: str) -> None:
    assert not descriptor_mismatch(own, followed)
    assert "12345678" in descriptor_mismatch("1234567890", "abc") and "abc" in descriptor_mismatch("1234567890", "abc")
