"""A descriptor with hosts: each has its own files, and its processes hear the others as `rfm up --host` would let them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.environment import discovery_environment, on_host
from ros2_rfm_serving.factory.nodes import node_list
from ros2_rfm_serving.operate.deploy.files import open_to_readers, write
from ros2_rfm_serving.operate.deploy.options import Kind
from ros2_rfm_serving.operate.supervisor import Supervisor
from ros2_rfm_serving.ros.node.discovery_server import discovery_servers
from ros2_rfm_serving.ros.node.middleware import PROFILES_FILE
from ros2_rfm_serving.shipped import shipped
from test.unit.operate.deploy.cases import (
    documents,
    environment,
    gpu_factory,
    parsed,
    pods,
    services,
    unit,
    with_hosts,
    words,
    written,
)
from test.unit.operate.deploy.test_same_as_up import said

HOSTS = ("floor", "gpu_a", "gpu_b")
DISCOVERY = "{mode: server, servers: [floor, gpu_b], domain: 42, partition: hall_3, port: 11900}"


@pytest.mark.parametrize("discovery", ["{}", "{mode: peers, namespace: hall_3}", DISCOVERY])
def test_every_host_starts_what_rfm_up_would_start_there(tmp_path: Path, discovery: str) -> None:
    of = gpu_factory(tmp_path / "f", text=with_hosts(discovery))
    namespace, factory = of[0].discovery.namespace, of[0]
    texts = written(of, Kind.SYSTEMD, namespace=namespace, domain=str(factory.discovery.domain or 0))
    nodes = node_list(factory, shipped("config"), fleet_namespace=namespace, work={"end_on_score": False})
    for host in HOSTS:
        mine = [*discovery_servers(factory, host, tmp_path / host), *on_host(nodes, factory, host, {})]
        up = {process.node.name: process for process in Supervisor(mine, tmp_path / host, fleet_namespace=namespace).processes}
        units = {
            name: unit(text) for name, text in texts.items() if name.startswith(f"{host}/units/rfm-") and "metrics" not in name
        }
        assert {Path(name).stem.removeprefix("rfm-") for name in units} == up.keys() and up
        for name, process in up.items():
            of_unit = units[f"{host}/units/rfm-{name}.service"]
            assert said(words(of_unit["ExecStart"][0])) == said(process.command)
            wanted = {**discovery_environment(factory, host), **process.node.environment}
            told = environment(of_unit)
            assert {key: told.get(key, "") for key in wanted if key != PROFILES_FILE} == without_files(wanted)
            there = told[PROFILES_FILE].removeprefix("/etc/rfm_serving/")
            assert told[PROFILES_FILE].startswith("/opt/rfm/share/rfm_serving/config/dds/") or f"{host}/etc/{there}" in texts


def without_files(environment: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key != PROFILES_FILE}


def test_profiles_say_what_those_of_rfm_up_say(tmp_path: Path) -> None:
    of = gpu_factory(tmp_path / "f", text=with_hosts(DISCOVERY))
    texts = written(of, Kind.SYSTEMD, domain="42")
    (server,) = discovery_servers(of[0], "gpu_b", tmp_path)
    assert texts["gpu_b/etc/dds/discovery_server_gpu_b.xml"] == Path(server.environment[PROFILES_FILE]).read_text()
    robot = environment(unit(texts["floor/units/rfm-pack_1.service"]))[PROFILES_FILE]
    assert "<name>hall_3</name>" in texts[f"floor/etc/{Path(robot).relative_to('/etc/rfm_serving')}"]


def test_containers_of_several_hosts_want_their_hosts_addresses(tmp_path: Path) -> None:
    of = gpu_factory(tmp_path, text=with_hosts())
    with pytest.raises(ConfigurationError, match=re.escape("packing.yaml: hosts: the descriptor's hosts reach each other")):
        written(of, Kind.COMPOSE)
    texts = written(of, Kind.COMPOSE, host_network=True)
    on = {host: set(parsed(texts[f"{host}/compose.yaml"])[0]["services"]) for host in HOSTS}
    assert on["floor"] == {"scheduler", "foreman", "server_3", "pack_1", "pack_2", "metrics"}
    assert on["gpu_a"] == {"server_1", "metrics"} and on["gpu_b"] == {"server_2", "metrics"}
    devices = services(texts)["server_2"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices[0]["device_ids"] == ["3"], "of gpu_b, as the descriptor says"
    assert "gpu_a/etc/parameters/server_1.yaml" in texts and "gpu_a/etc/parameters/server_2.yaml" not in texts


def test_the_users_of_units_and_containers_can_read_what_somebody_careful_wrote(tmp_path: Path) -> None:
    texts, folder = written(gpu_factory(tmp_path, text=with_hosts()), Kind.SYSTEMD), tmp_path / "out"
    before = os.umask(0o077)
    try:
        write(folder, texts, force=False)
        open_to_readers(folder, texts)
    finally:
        os.umask(before)
    for path in folder.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path
    assert folder.stat().st_mode & 0o777 == 0o700, "it may be anybody's folder"


def test_pods_go_where_the_descriptor_says(tmp_path: Path) -> None:
    texts = written(gpu_factory(tmp_path, text=with_hosts()), Kind.KUBERNETES)
    where = {name: pod["nodeSelector"]["rfm-serving/host"] for name, pod in pods(texts).items()}
    assert (where["rfm-server-1"], where["rfm-server-2"], where["rfm-pack-2"]) == ("gpu_a", "gpu_b", "floor")
    assert "manifests/gpu_a/server-1.yaml" in texts and "rfm-serving/host=gpu_b" in texts["README.md"]


def test_pods_find_discovery_servers_by_name(tmp_path: Path) -> None:
    """Their addresses are nobody's to know."""
    of = gpu_factory(tmp_path, text=with_hosts(DISCOVERY))
    texts = written(of, Kind.KUBERNETES, domain="42")
    told = {one["name"]: one.get("value") for one in pods(texts)["rfm-server-1"]["containers"][0]["env"]}
    assert told["ROS_DISCOVERY_SERVER"] == "rfm-discovery-server-floor:11900;rfm-discovery-server-gpu-b:11900"
    found = {d["metadata"]["name"]: d["spec"] for d in documents(texts) if d["kind"] == "Service"}
    assert found.keys() == {"rfm-discovery-server-floor", "rfm-discovery-server-gpu-b"}
    assert all(spec["publishNotReadyAddresses"] and spec["ports"][0]["protocol"] == "UDP" for spec in found.values())
    files = next(d for d in documents(texts) if d["metadata"]["name"] == "rfm-files")["data"]
    assert "<address>0.0.0.0</address>" in files["dds_discovery_server_floor.xml"]
    server = pods(texts)["rfm-discovery-server-floor"]
    said = {one["name"]: one.get("value") for one in server["containers"][0]["env"]}
    assert said[PROFILES_FILE] == "/etc/rfm_serving/dds/discovery_server_floor.xml" and "ROS_DISCOVERY_SERVER" not in said
    with pytest.raises(ConfigurationError, match=re.escape("discovery.mode: pods have addresses of their own")):
        written(gpu_factory(tmp_path, text=with_hosts("{mode: peers}")), Kind.KUBERNETES)
    peers = written(gpu_factory(tmp_path, text=with_hosts("{mode: peers}")), Kind.KUBERNETES, host_network=True)
    told = {one["name"]: one.get("value") for one in pods(peers)["rfm-server-1"]["containers"][0]["env"]}
    assert told["ROS_STATIC_PEERS"] == "10.0.0.1;10.0.0.3"


def test_this_machines_own_variables_go_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = gpu_factory(tmp_path, text=with_hosts())
    before = written(of, Kind.SYSTEMD)
    for name in ("CUDA_VISIBLE_DEVICES", "ROS_STATIC_PEERS", "OMP_NUM_THREADS", PROFILES_FILE, "ROS_DISCOVERY_SERVER"):
        monkeypatch.setitem(os.environ, name, "7")
    assert written(of, Kind.SYSTEMD) == before


def test_a_host_with_gpus_of_two_types_is_refused_where_a_pod_would_get_any_of_them(tmp_path: Path) -> None:
    """Compose and systemd give each server the GPU that `rfm up` would."""
    group = "  - {num_servers: 1, gpu_type: CPU}"
    text = with_hosts().replace(group, f"{group}\n  - {{num_servers: 1, gpu_type: L4}}")
    of = gpu_factory(tmp_path / "f", text=text.replace("{NVIDIA H200: [3]}", "{NVIDIA H200: [3], L4: [0]}"))
    refused = "hosts.gpu_b.gpus: has GPUs of several types, and a node's nvidia.com/gpu is any of them"
    with pytest.raises(ConfigurationError, match=re.escape(refused)):
        written(of, Kind.KUBERNETES, host_network=True)
    started = services(written(of, Kind.COMPOSE, host_network=True))
    reserved = {name: service["deploy"]["resources"]["reservations"] for name, service in started.items()}
    given = {name: own["devices"][0]["device_ids"] for name, own in reserved.items() if "devices" in own}
    up = {node.name: [node.device] for node in node_list(of[0], shipped("config")) if node.device}
    assert given == up and sorted(up.values()) == [["0"], ["0"], ["3"]]
