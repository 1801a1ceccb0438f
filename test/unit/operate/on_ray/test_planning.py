"""What Ray is asked for: from the descriptor alone, without Ray."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Factory, load_factory, parse_factory
from ros2_rfm_serving.factory.nodes import NodeSpec, node_list
from ros2_rfm_serving.operate.on_ray.errand import ANSWERS_S, end_s, errand
from ros2_rfm_serving.operate.on_ray.planning import ClusterNode, Layout, Strategy, check_room, heard, layout
from ros2_rfm_serving.operate.run import run_factory
from ros2_rfm_serving.operate.running import Options
from ros2_rfm_serving.operate.supervisor import STOP_TIMEOUT_S
from ros2_rfm_serving.shipped import shipped

HOST, GPU_TYPE = "rfm-serving/host", "rfm-serving/gpu-type"
TEXT = """\
server_cluster:
  - {num_servers: 4, gpu_type: H200}
  - {num_servers: 1, gpu_type: CPU, hosts: [floor]}
robot_fleet: [{task: arm, num_robots: 1}]
hosts:
  floor: {address: 10.0.0.1, gpus: {CPU: 1}}
  gpu_a: {address: 10.0.0.2, gpus: {H200: 2}}
  gpu_b: {address: 10.0.0.3, gpus: {H200: [0, 3]}}
arm:
  pipeline: {action_period_ms: 300}
  components: {system1: {model: own/policy}}
"""


def of(text: str = TEXT) -> Factory:
    return parse_factory(text, "f.yaml")


def planned(text: str = TEXT, engine: str = "bundle", *, one_machine: bool = False) -> Layout:
    return layout(of(text), {engine}, one_machine=one_machine)


def without_hosts(text: str = TEXT) -> str:
    head, _, rest = text.partition("hosts:\n")
    return head.replace(", hosts: [floor]", "") + "arm:" + rest.partition("arm:")[2]


def node(address: str, gpus: float = 0, cpus: float = 8, **labels: str) -> ClusterNode:
    named = {HOST if name == "host" else GPU_TYPE: value for name, value in labels.items()}
    return ClusterNode(address=address, resources={"CPU": cpus, "GPU": gpus}, labels=named)


def test_a_host_is_a_bundle_and_bundles_lie_apart() -> None:
    made = planned()
    assert made.strategy is Strategy.APART
    by_name = {bundle.name: bundle for bundle in made.bundles}
    assert set(by_name) == {"floor", "gpu_a", "gpu_b"}
    assert by_name["gpu_a"].resources == by_name["gpu_b"].resources == {"CPU": 2.0, "GPU": 2.0}
    assert by_name["floor"].resources == {"CPU": 1.0} and by_name["floor"].labels == {HOST: ("floor",)}
    assert not by_name["gpu_a"].labels, "who is bound to no host may move to any node with the GPUs"
    homes = {server: seat.host for server, seat in of().gpu_assignments.items()}
    assert all(made.bundles[made.bundle_of(server) or 0].name == host for server, host in homes.items())
    assert made.num_gpus == {"server_1": 1, "server_2": 1, "server_3": 1, "server_4": 1, "server_5": 0}
    assert made.bundle_of("scheduler") is None


def test_who_is_bound_to_several_hosts_may_be_on_any_of_them() -> None:
    text = TEXT.replace("{num_servers: 4, gpu_type: H200}", "{num_servers: 4, gpu_type: H200, hosts: [gpu_a, gpu_b]}")
    assert {bundle.labels.get(HOST) for bundle in planned(text).bundles} == {("floor",), ("gpu_a", "gpu_b")}


def test_without_hosts_every_server_lies_where_there_is_room() -> None:
    made = planned(without_hosts())
    assert made.strategy is Strategy.SPREAD and [bundle.servers for bundle in made.bundles] == [
        (f"server_{i}",) for i in range(1, 6)
    ]
    check_room(made, [node("a", gpus=4)])


def test_a_standby_that_may_be_beside_its_server_binds_no_one() -> None:
    made = planned(TEXT + "standby: {num_servers: 1, same_host: true}\n")
    assert made.strategy is Strategy.SPREAD and len(made.bundles) == 3


def test_one_machine_is_all_hosts() -> None:
    made = planned(one_machine=True)
    assert made.strategy is Strategy.SPREAD and not any(bundle.labels for bundle in made.bundles) and made.total_cpus > 5


def test_emulated_servers_take_no_gpu() -> None:
    assert not any("GPU" in bundle.resources for bundle in planned(engine="emulated").bundles)


def test_gpus_of_several_types_are_told_apart_by_labels() -> None:
    two = TEXT.replace(
        "{num_servers: 4, gpu_type: H200}", "{num_servers: 2, gpu_type: H200}\n  - {num_servers: 2, gpu_type: NVIDIA L4}"
    )
    made = planned(two.replace("H200: [0, 3]", "NVIDIA L4: 2"))
    assert {bundle.name: bundle.labels.get(GPU_TYPE) for bundle in made.bundles} == {
        "floor": None,
        "gpu_a": ("h200",),
        "gpu_b": ("nvidia-l4",),
    }
    with pytest.raises(ConfigurationError, match=r"hosts.gpu_a.gpus: has GPUs of several types.*; declare a host for each type"):
        planned(
            two.replace("gpus: {H200: 2}", "gpus: {H200: 2, NVIDIA L4: 2}").replace(
                "  gpu_b: {address: 10.0.0.3, gpus: {H200: [0, 3]}}\n", ""
            )
        )
    alike = two.replace("NVIDIA L4", "h-200").replace("H200", "H-200").replace("h-200", "h 200")
    with pytest.raises(ConfigurationError, match="'H-200' and 'h 200' would both be the label 'h-200'"):
        planned(without_hosts(alike))


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ([node("a", 2), node("b", 2), node("c", 0, host="floor")], ""),
        ([node("a", 4), node("c", 0, host="floor")], "each host wants a node of its own, and none is left for gpu_b"),
        (
            [node("a", 2), node("b", 2), node("c", 0)],
            "no node of the Ray cluster has room for floor (1 CPU, rfm-serving/host=floor)",
        ),
        ([node("a", 2), node("b", 1), node("c", 1, host="floor")], "none is left for gpu_b (2 CPU, 2 GPU)"),
        ([node("a", 2, cpus=1), node("c", 0, host="floor")], "has room for gpu_a (2 CPU, 2 GPU)"),
        ([], "has room for gpu_a"),
        # the floor's only node is taken first by whoever could be elsewhere
        ([node("c", 2, host="floor"), node("a", 2), node("b", 2)], ""),
    ],
)
def test_what_would_wait_for_ever_is_said_at_once(nodes: list[ClusterNode], problem: str) -> None:
    if not problem:
        check_room(planned(), nodes)
        return
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        check_room(planned(), nodes)


def test_processes_hear_each_other_wherever_they_are_put() -> None:
    assert heard(of(), {"10.0.0.1"}, "10.0.0.1") == {}, "all on this machine"
    assert heard(of(), {"10.0.0.1", "10.0.0.2"}, "10.0.0.1")["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "SUBNET"
    peers = heard(of(TEXT + "discovery: {mode: peers, domain: 42}\n"), {"10.0.0.9", "10.0.0.2"}, "10.0.0.2")
    assert peers["ROS_STATIC_PEERS"] == "10.0.0.1;10.0.0.2;10.0.0.3;10.0.0.9" and peers["ROS_DOMAIN_ID"] == "42"
    with pytest.raises(ConfigurationError, match=r"discovery\.mode: a discovery server has one address"):
        heard(of(TEXT + "discovery: {mode: server}\n"), {"10.0.0.1"}, "10.0.0.1")


def test_what_concerns_all_is_carried_and_what_is_a_machine_s_own_is_not(tmp_path: Path) -> None:
    here = {"ROS_DOMAIN_ID": "7", "OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "3", "CLOUD_TOKEN": "secret", "PATH": "/bin"}
    nodes = {node.name: node for node in node_list(of(), shipped("config"), profiles=tmp_path)}
    texts = {"factory.yaml": TEXT, "profiles/models.yaml": "models: {}"}
    told = errand(nodes["scheduler"], texts, here, "hall", "debug")
    assert "secret" not in repr(told) and "PATH" not in told.environment
    assert told.environment["CUDA_VISIBLE_DEVICES"] == "-1", "whatever Ray leaves there, a process without a GPU sees none"
    with_gpu = errand(nodes["server_1"], texts, here, "hall", "debug", num_gpus=1)
    assert "CUDA_VISIBLE_DEVICES" not in with_gpu.environment, "it is Ray's to say"
    assert told.environment["ROS_DOMAIN_ID"] == "7" and told.environment["OMP_NUM_THREADS"] == "4"
    assert told.environment["ROS_STATIC_PEERS"] == "", "what is not set here is not set there"
    put = told.put(tmp_path / "there")
    assert Path(put.parameters["factory_file"]).read_text() == TEXT
    assert (Path(put.parameters["profiles_folder"]) / "models.yaml").is_file()
    with pytest.raises(ConfigurationError, match=r"has rfm_serving .*, and `rfm up` is of 0\.0\.9; install the same version"):
        dataclasses.replace(told, version="0.0.9").put(tmp_path)
    assert errand(nodes["server_1"], {}, {}, "", "info").environment["OMP_NUM_THREADS"] == "1", "whatever Ray says"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"on": "ray", "host": "gpu_a"}, "--host: Ray itself chooses the nodes; leave out --host, or --on ray"),
        (
            {"on": "ray", "security": Path("keys")},
            "--security: its keys are not carried to a cluster's nodes; leave out --security, or --on ray",
        ),
        ({"ray_address": "10.0.0.1:6379"}, "--ray-address: is of a Ray cluster; add --on ray"),
        ({"on": "slurm"}, "--on: 'slurm' is nothing to run on; write ray"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        Options(logs=Path("logs"), **options)


def test_without_ray_it_is_said_how_to_get_it(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("supervisor", "cluster", "remote"):
        monkeypatch.delitem(sys.modules, f"ros2_rfm_serving.operate.on_ray.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    factory = load_factory(repository / "config" / "factory_emulated.yaml")
    with pytest.raises(ConfigurationError, match=re.escape("--on ray: ray is missing; pip install 'ros2-rfm-serving[ray]'")):
        run_factory(factory, Options(on="ray"))


def test_servers_that_drain_for_long_have_that_time_on_ray_too(tmp_path: Path) -> None:
    """By the descriptor, or by a parameter file."""
    (tmp_path / "server.yaml").write_text("/**: {ros__parameters: {drain_timeout_s: 120}}")
    at_once = NodeSpec(name="server_1", executable="model_server_node")
    drains = dataclasses.replace(at_once, parameters={"drain_timeout_s": 45.0})
    drains_by_file = dataclasses.replace(at_once, params_file=str(tmp_path / "server.yaml"))
    for nodes, seconds in (([], 0.0), ([at_once], 0.0), ([at_once, drains], 45.0), ([drains_by_file, drains], 120.0)):
        assert end_s(nodes) == STOP_TIMEOUT_S + seconds + ANSWERS_S
