"""The machines of a descriptor: what is refused, who runs where, on which GPU, and what its processes find in their environment."""

from __future__ import annotations

import re
from collections import Counter
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Factory, load_factory, parse_factory
from ros2_rfm_serving.factory.environment import discovery_environment, gpu_environment, on_host, server_hosts, visible_devices
from ros2_rfm_serving.factory.machines import GpuRequest, Machine, assign_gpus
from ros2_rfm_serving.factory.nodes import NodeSpec, node_list
from ros2_rfm_serving.shipped import shipped

CONFIG = shipped("config")
TEXT = """\
server_cluster:
  - {num_servers: 3, gpu_type: H200}
  - {num_servers: 1, gpu_type: CPU, hosts: [gpu_b]}
robot_fleet: [{task: arm, num_robots: 2}, {task: belt, num_robots: 1}]
hosts:
  floor: {address: 10.0.0.1, robots: [arm]}
  gpu_a: {address: 10.0.0.2, gpus: {H200: 2}}
  gpu_b: {address: 10.0.0.3, gpus: {L4: 1, H200: 1, CPU: 1}, scheduler: true}
discovery: {mode: peers, domain: 42, namespace: hall_3, peers: [10.0.0.9]}
arm:
  pipeline: {action_period_ms: 300}
  components: {system1: {model: emulated/arm-policy}}
belt:
  pipeline: {action_period_ms: 300}
  components: {system1: {model: emulated/arm-policy}}
"""


def changed(old: str, new: str) -> Factory:
    assert old in TEXT
    return parse_factory(TEXT.replace(old, new), "f.yaml")


@pytest.fixture
def factory() -> Factory:
    return parse_factory(TEXT, "f.yaml")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("10.0.0.1", "floor.plant", ["f.yaml:6", "hosts.floor.address", "not a valid IPv4 address"]),
        ("10.0.0.1", "10.0.0.300", ["hosts.floor.address"]),
        ("10.0.0.1", "fe80::1", ["hosts.floor.address"]),
        ("10.0.0.1", "239.255.0.1", ["hosts.floor.address", "no machine's own address"]),
        ("10.0.0.1", "0.0.0.0", ["hosts.floor.address", "no machine's own address"]),
        ("10.0.0.1", "0.0.0.1", ["hosts.floor.address", "no machine's own address"]),
        ("10.0.0.1", "yes", ["hosts.floor.address", "is a truth value to YAML", "(found True)"]),
        ("10.0.0.1", "0x0a000001", ["hosts.floor.address", "write four numbers"]),
        ("num_robots: 2", "num_robots: yes", ["robot_fleet[0].num_robots", "is a truth value to YAML"]),
        ("10.0.0.1", "167772161", ["hosts.floor.address", "write four numbers"]),
        ("address: 10.0.0.1", "adress: 10.0.0.1", ["hosts.floor.adress", "did you mean `address`?"]),
        ("10.0.0.2", "10.0.0.1", ["f.yaml:7", "hosts.gpu_a.address", "10.0.0.1 is 'floor''s already"]),
        ("gpu_a:", "gpu_b:", ["f.yaml:8", "hosts.gpu_b", "written twice"]),
        ("gpu_a:", "GPU A:", ["hosts.GPU A", "cannot name a host"]),
        ("gpu_a:", "on:", ["hosts.on", "`on` is a truth value to YAML", "in quotes: 'on'"]),
        ("robots: [arm]", "robots: [arms]", ["hosts.floor.robots[0]", "no task is named 'arms'", "did you mean `arm`?"]),
        ("{H200: 2}", "{H200: 2}, robots: [arm]", ["hosts.gpu_a.robots[0]", "run on 'floor' already"]),
        ("{H200: 2}", "{H200: 2}, scheduler: true", ["hosts.gpu_b.scheduler", "one scheduler", "'gpu_a'"]),
        ("{H200: 2}", "{H200: 0}", ["hosts.gpu_a.gpus.H200", "from 1 to 1024"]),
        ("{H200: 2}", "{H200: true}", ["hosts.gpu_a.gpus.H200", "`true` is a truth value to YAML", "write a number"]),
        ("{H200: 2}", "{H200: []}", ["hosts.gpu_a.gpus.H200", "neither a number of GPUs nor a list"]),
        ("{H200: 2}", '{H200: ["0; rm"]}', ["hosts.gpu_a.gpus.H200", "neither a number of GPUs nor a list"]),
        ("{H200: 2}", "{H200: [0, 0]}", ["hosts.gpu_a", "a device is listed twice"]),
        ("{H200: 2}", '{H200: [0, "00"]}', ["hosts.gpu_a", "a device is listed twice"]),
        ("{H200: 2}", "{H200: [0, 1], L4: 1}", ["hosts.gpu_a", "List them as well"]),
        (
            "{H200: 2}",
            "{H200: 1}",
            ["hosts", "server_3 finds no GPU", "3 servers want one of type 'H200'", "1 on gpu_a + 1 on gpu_b"],
        ),
        ("hosts: [gpu_b]", "hosts: [gpu_c]", ["server_cluster[1].hosts[0]", "no host is named 'gpu_c'", "did you mean"]),
        ("hosts: [gpu_b]", "hosts: [gpu_a]", ["server_cluster[1].hosts[0]", "'gpu_a' has no 'CPU'", "its `gpus` are: H200"]),
        ("domain: 42", "domain: 233", ["discovery.domain", "232"]),
        ("hall_3", "hall-3", ["discovery.namespace"]),
        ("hall_3", "hall_3, partition: a/b", ["discovery.partition"]),
        ("mode: peers", "mode: bluetooth", ["discovery.mode"]),
        ("mode: peers", "mode: server", ["discovery.peers", "`mode: server` has none"]),
        ("mode: peers", "mode: peers, servers: [floor]", ["discovery.servers", "write `mode: server`"]),
        (", peers: [10.0.0.9]", ", peers: [robot_7]", ["discovery.peers", "not a valid IPv4 address"]),
        (
            "mode: peers, domain: 42, namespace: hall_3, peers: [10.0.0.9]",
            "mode: server, servers: [gpu]",
            ["no host is named 'gpu'"],
        ),
        (
            "mode: peers, domain: 42, namespace: hall_3, peers: [10.0.0.9]",
            "mode: server, servers: [floor, floor]",
            ["discovery.servers[1]", "'floor' runs one already"],
        ),
        ("discovery:", "discover:", ["discover", "did you mean `discovery`?"]),
    ],
)
def test_what_is_wrong_is_said_with_key_value_and_fix(old: str, new: str, expected: list[str]) -> None:
    with pytest.raises(ConfigurationError) as error:
        changed(old, new)
    for part in expected:
        assert part in str(error.value)


def test_hosts_that_are_none_and_discovery_without_them() -> None:
    for hosts in ("[]", "{}", "gpu_a"):
        with pytest.raises(ConfigurationError, match="must name at least one machine"):
            parse_factory(re.sub(r"hosts:\n(  \w.*\n)*", f"hosts: {hosts}\n", TEXT), "f.yaml")
    alone = re.sub(r"\nhosts:\n(  \w.*\n)*", "\n", TEXT).replace(", hosts: [gpu_b]", "")
    with pytest.raises(ConfigurationError, match=r"discovery.mode.*`peers` needs to know whom to find"):
        parse_factory(alone, "f.yaml")
    plain = parse_factory(alone.replace("mode: peers, ", "").replace(", peers: [10.0.0.9]", ""))
    assert plain.discovery.domain == 42 and not plain.hosts and not plain.gpu_assignments
    assert discovery_environment(plain) == {"ROS_DOMAIN_ID": "42"}


def test_a_long_chain_of_moves_is_found_and_more_hosts_than_that_are_refused() -> None:
    """Each may sit on two hosts, and the last one's only host is the first one's choice."""
    num = 256
    hosts = {f"h{i}": Machine(address=IPv4Address("10.0.0.1") + i, gpus={"A": 1}) for i in range(num)}
    wishes = {f"s{i}": GpuRequest("A", (f"h{i}", f"h{i + 1}")) for i in range(num - 1)} | {"last": GpuRequest("A", ("h0",))}
    found = assign_gpus(hosts, wishes)
    assert len(found) == num and found["last"].host == "h0"
    many = "".join(f"  h{i}: {{address: 10.1.{i // 250}.{i % 250 + 1}}}\n" for i in range(num))
    with pytest.raises(ConfigurationError, match="hosts: are 259 machines; at most 256"):
        changed("  floor: {", many + "  floor: {")


def test_servers_are_spread_and_everything_has_its_host(factory: Factory) -> None:
    assert {server: tuple(seat) for server, seat in factory.gpu_assignments.items()} == {
        "server_1": ("gpu_a", "0"),
        "server_2": ("gpu_b", "1"),  # its L4 is 0
        "server_3": ("gpu_a", "1"),
        "server_4": ("gpu_b", ""),
    }
    hosts = {node.name: node.host for node in node_list(factory, CONFIG, work={})}
    assert hosts["scheduler"] == hosts["foreman"] == hosts["belt_1"] == "gpu_b"
    assert hosts["arm_1"] == hosts["arm_2"] == "floor" and hosts["server_3"] == "gpu_a"
    assert changed("scheduler: true", "scheduler: false").scheduler_host == "floor"


def test_without_hosts_nothing_has_one() -> None:
    quickstart = load_factory(CONFIG / "factory_quickstart.yaml")
    nodes = node_list(quickstart, CONFIG, work={})
    assert {(node.host, node.device, tuple(node.environment)) for node in nodes} == {("", "", ())}
    assert discovery_environment(quickstart) == {}
    with pytest.raises(ConfigurationError, match=r"no host is named 'gpu_a'.*declare the machines"):
        discovery_environment(quickstart, "gpu_a")


def test_a_foreman_waits_for_the_reset_of_simulated_robots_alone(factory: Factory) -> None:
    robots = {robot.name for robot in factory.robots}
    (real,) = (node.parameters for node in node_list(factory, CONFIG, work={}) if node.executable == "foreman_node")
    assert set(real["robots"]) == robots and "wait_for_reset" not in real
    quickstart = load_factory(CONFIG / "factory_quickstart.yaml")
    (simulated,) = (node.parameters for node in node_list(quickstart, CONFIG, work={}) if node.executable == "foreman_node")
    assert simulated["robots"] and simulated["wait_for_reset"] == simulated["robots"]


def test_every_server_sees_its_own_gpu_and_no_other(factory: Factory) -> None:
    nodes = node_list(factory, CONFIG)
    mine = {node.name: node.environment for node in on_host(nodes, factory, "gpu_a", {})}
    assert mine == {
        "server_1": {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        "server_3": {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    }
    others = {node.name: node.environment for node in on_host(nodes, factory, "gpu_b", {})}
    assert others["server_4"] == others["scheduler"] == others["belt_1"] == {}


def test_indices_count_within_what_this_process_may_see() -> None:
    node = NodeSpec(name="server_2", executable="model_server_node", host="gpu_a", device="1")
    assert gpu_environment(node, {"CUDA_VISIBLE_DEVICES": "4, 6"}) == {"CUDA_VISIBLE_DEVICES": "6"}
    for visible in ("", "4", "-1,4", "4,-1,6", "NoDevFiles", "4,4", "4,04", "GPU-4,6", "4,GPU-6"):
        with pytest.raises(ConfigurationError, match=r"hosts.gpu_a.gpus.*server_2 is to run on GPU 1"):
            gpu_environment(node, {"CUDA_VISIBLE_DEVICES": visible})
    named = NodeSpec(name="server_2", executable="model_server_node", host="gpu_a", device="GPU-8a5f")
    assert gpu_environment(named, {"CUDA_VISIBLE_DEVICES": "4"})["CUDA_VISIBLE_DEVICES"] == "GPU-8a5f"


@pytest.mark.parametrize(
    "visible", ["0,1", "4, 6", "0,0", "0,00", "GPU-a,GPU-b", "GPU-a,GPU-a", "GPU-a,1", "0,GPU-a", "", "-1", "1,-1,2"]
)
def test_what_is_visible_is_what_pytorch_sees(visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a device that is named twice, two servers would have made one."""
    from torch.cuda import _parse_visible_devices

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_devices({"CUDA_VISIBLE_DEVICES": visible}) == [str(device) for device in _parse_visible_devices()]


def test_listed_devices_are_taken_as_they_are() -> None:
    factory = changed("{H200: 2}", "{H200: [2, GPU-8a5f]}")
    assert [factory.gpu_assignments[server].device for server in ("server_1", "server_3")] == ["2", "GPU-8a5f"]


def test_whom_the_processes_of_a_host_hear(factory: Factory) -> None:
    on_floor = discovery_environment(factory, "floor")
    assert on_floor["ROS_STATIC_PEERS"] == "10.0.0.2;10.0.0.3;10.0.0.9" and on_floor["ROS_DOMAIN_ID"] == "42"
    assert on_floor["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST" and on_floor["ROS_DISCOVERY_SERVER"] == ""
    assert discovery_environment(factory, "-")["ROS_STATIC_PEERS"].startswith("10.0.0.1;10.0.0.2;10.0.0.3")
    assert discovery_environment(factory) == {"ROS_DOMAIN_ID": "42"}

    multicast = changed("mode: peers, domain: 42, namespace: hall_3, peers: [10.0.0.9]", "domain: 42")
    heard = discovery_environment(multicast, "floor")
    assert heard["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "SUBNET" and not heard["ROS_STATIC_PEERS"] and server_hosts(multicast) == ()

    server = changed("mode: peers, domain: 42, namespace: hall_3, peers: [10.0.0.9]", "mode: server, port: 11900")
    assert server_hosts(server) == ("gpu_b",)
    heard = discovery_environment(server, "floor")
    assert (
        heard["ROS_DISCOVERY_SERVER"] == "10.0.0.3:11900" and heard["ROS_SUPER_CLIENT"] == "TRUE" and "ROS_DOMAIN_ID" not in heard
    )
    two = changed("mode: peers, domain: 42, namespace: hall_3, peers: [10.0.0.9]", "mode: server, servers: [gpu_a, floor]")
    assert discovery_environment(two, "floor")["ROS_DISCOVERY_SERVER"] == "10.0.0.2:11811;10.0.0.1:11811"


def test_a_plan_reckons_with_the_longest_round_trip_to_a_host_that_serves() -> None:
    text = TEXT.replace("num_robots: 2}", "num_robots: 2, network: {round_trip_ms: 5, jitter_ms: 2}}")
    text = text.replace("{H200: 2}", "{H200: 2}, round_trip_ms: 20").replace("robots: [arm]", "robots: [arm], round_trip_ms: 500")
    declared = parse_factory(text)  # nobody serves on `floor`
    assert declared.network_of("arm").mean_s == pytest.approx(0.027)
    assert declared.network_of("belt").mean_s == pytest.approx(0.020)


TYPES = ("A", "B")
NAMES = ("h1", "h2", "h3")
HOSTS = st.fixed_dictionaries({name: st.dictionaries(st.sampled_from(TYPES), st.integers(1, 2)) for name in NAMES})
WISHES = st.lists(st.tuples(st.sampled_from(TYPES), st.sets(st.sampled_from(NAMES))), max_size=6)


@given(HOSTS, WISHES)
def test_a_seating_is_right_and_found_wherever_there_is_one(
    gpus: dict[str, dict[str, int]], wishes: list[tuple[str, set[str]]]
) -> None:
    hosts = {name: Machine(address=IPv4Address(f"10.0.0.{i + 1}"), gpus=gpus[name]) for i, name in enumerate(NAMES)}
    wished = {f"s{i}": GpuRequest(gpu, tuple(sorted(names))) for i, (gpu, names) in enumerate(wishes)}
    found = assign_gpus(hosts, wished)
    for server, seat in found.items():
        assert not wished[server].hosts or seat.host in wished[server].hosts
    assert len({(seat.host, seat.device) for seat in found.values()}) == len(found)
    used = Counter((seat.host, wished[server].gpu_type) for server, seat in found.items())
    assert all(num <= gpus[host].get(gpu, 0) for (host, gpu), num in used.items())
    assert (len(found) == len(wished)) == _can_all_sit(gpus, list(wished.values()))


def _can_all_sit(gpus: dict[str, dict[str, int]], wishes: list[GpuRequest]) -> bool:
    """By trying everything."""
    if not wishes:
        return True
    first, *others = wishes
    for host in first.hosts or NAMES:
        if gpus[host].get(first.gpu_type, 0):
            left = {
                name: {**types, **({first.gpu_type: types[first.gpu_type] - 1} if name == host else {})}
                for name, types in gpus.items()
            }
            if _can_all_sit(left, others):
                return True
    return False


def test_equal_servers_are_spread_evenly() -> None:
    hosts = {name: Machine(address=IPv4Address(f"10.0.0.{i + 1}"), gpus={"A": 8}) for i, name in enumerate(NAMES)}
    found = assign_gpus(hosts, {f"s{i}": GpuRequest("A") for i in range(7)})
    assert sorted(Counter(seat.host for seat in found.values()).values()) == [2, 2, 3]
