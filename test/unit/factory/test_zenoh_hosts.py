"""Hosts whose robots are on Zenoh alone: what is refused, what runs where, and who hears whom."""

from __future__ import annotations

import pytest

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Factory, load_factory, parse_factory
from ros2_rfm_serving.factory.environment import PEERS, RANGE, discovery_environment
from ros2_rfm_serving.factory.nodes import node_list
from ros2_rfm_serving.security.members import members_of
from ros2_rfm_serving.security.wire_table import Role
from ros2_rfm_serving.shipped import shipped

CONFIG = shipped("config")
TEXT = """\
server_cluster: {num_servers: 1, gpu_type: H200}
robot_fleet: [{task: arm, num_robots: 2}, {task: belt, num_robots: 1}]
hosts:
  plant: {address: 10.0.0.1}
  gpu_a: {address: 10.0.0.2, gpus: {H200: 1}}
  floor: {address: 10.0.0.3, robots: [arm], zenoh: true}
discovery: {mode: peers, domain: 42}
arm: &task
  pipeline: {action_period_ms: 300}
  components: {system1: {model: emulated/arm-policy}}
belt: *task
"""


@pytest.fixture
def factory() -> Factory:
    return parse_factory(TEXT, "f.yaml")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("robots: [arm], zenoh", "robots: [arm], gpus: {L4: 1}, zenoh", ["hosts.floor", "has robots alone"]),
        ("robots: [arm], zenoh", "robots: [arm], scheduler: true, zenoh", ["hosts.floor", "has robots alone"]),
        ("robots: [arm], zenoh", "zenoh", ["hosts.floor", "names the tasks"]),
        ("10.0.0.1}", "10.0.0.1, robots: [belt], zenoh: true}", ["hosts.plant.zenoh", "the scheduler runs on the first host"]),
        ("zenoh: true", "zenoh: tcp", ["hosts.floor.zenoh"]),
    ],
)
def test_what_cannot_be_is_refused_in_words(old: str, new: str, expected: list[str]) -> None:
    assert old in TEXT
    with pytest.raises(ConfigurationError) as refused:
        parse_factory(TEXT.replace(old, new), "f.yaml")
    assert all(part in str(refused.value) for part in expected), refused.value


def test_router_and_door_run_beside_the_scheduler_and_a_foreman_beside_the_robots(factory: Factory) -> None:
    nodes = {node.name: node for node in node_list(factory, CONFIG, work={})}
    assert {name: nodes[name].host for name in ("router", "door", "foreman", "foreman_floor", "arm_1", "belt_1")} == {
        **dict.fromkeys(("router", "door", "foreman", "belt_1"), "plant"),
        **dict.fromkeys(("foreman_floor", "arm_1"), "floor"),
    }
    assert nodes["foreman_floor"].parameters["robots"] == ["arm_1", "arm_2"]
    assert nodes["foreman"].parameters["robots"] == ["belt_1"]
    router = "tcp/10.0.0.1:7447"
    assert nodes["arm_1"].parameters["zenoh_router"] == router == nodes["door"].parameters["router"]
    assert "zenoh_router" not in nodes["belt_1"].parameters


def test_who_is_on_zenoh_neither_hears_nor_is_heard_on_dds(factory: Factory) -> None:
    assert discovery_environment(factory, "floor") | {RANGE: "", PEERS: "-"} == {
        **discovery_environment(factory, "plant"),
        RANGE: "",
        PEERS: "-",
    }
    assert discovery_environment(factory, "floor")[RANGE] == "LOCALHOST" and discovery_environment(factory, "floor")[PEERS] == ""
    assert discovery_environment(factory, "plant")[PEERS] == "10.0.0.2"


def test_on_one_machine_nobody_needs_it(factory: Factory) -> None:
    nodes = node_list(factory.on_one_machine(), CONFIG, work={})
    assert {"router", "door"}.isdisjoint(node.name for node in nodes)
    assert not [node.name for node in nodes if "zenoh_router" in node.parameters]
    assert [node.name for node in nodes if node.executable == "foreman_node"] == ["foreman"]


def test_all_of_them_have_certificates(factory: Factory) -> None:
    members = members_of(factory, CONFIG, ("10.0.0.1",))
    roles = {"router": Role.ROUTER, "door": Role.DOOR, "foreman_floor": Role.FOREMAN, "arm_1": Role.ROBOT}
    assert {name: members[name].role for name in roles} == roles
    assert "10.0.0.1" in members["router"].addresses


def test_the_shipped_ones_are_the_quickstart() -> None:
    quickstart = load_factory(CONFIG / "factory_quickstart.yaml")
    for name in ("hosts", "zenoh"):
        spread = load_factory(CONFIG / f"factory_{name}.yaml")
        assert (spread.tasks, spread.robot_fleet) == (quickstart.tasks, quickstart.robot_fleet)
