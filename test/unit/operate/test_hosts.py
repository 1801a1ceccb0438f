"""What `rfm up --host` starts, what it says to its processes, and what `rfm doctor --host` finds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Factory, parse_factory
from ros2_rfm_serving.factory.environment import discovery_environment
from ros2_rfm_serving.factory.nodes import node_list
from ros2_rfm_serving.operate.doctor.finding import Verdict
from ros2_rfm_serving.operate.doctor.host import Gpu, host_findings, shared_gpu
from ros2_rfm_serving.operate.run import warn_of_another_machine
from ros2_rfm_serving.operate.running import prepare_environment
from ros2_rfm_serving.ros.node.discovery_server import part_of
from ros2_rfm_serving.ros.node.middleware import PROFILES_FILE, is_server_profile, use_partition, use_profile
from ros2_rfm_serving.shipped import shipped

TEXT = """\
server_cluster: {num_servers: 2, gpu_type: H200}
robot_fleet: [{task: arm, num_robots: 1}]
hosts:
  floor: {address: 10.0.0.1}
  gpu_a: {address: 127.0.0.1, gpus: {H200: 2}}
  idle: {address: 10.0.0.3}
discovery: {mode: server, servers: [floor, gpu_a]}
arm:
  pipeline: {action_period_ms: 300}
  components: {system1: {model: emulated/arm-policy}}
"""


@pytest.fixture
def factory() -> Factory:
    return parse_factory(TEXT, "f.yaml")


def test_a_host_s_part_begins_with_its_discovery_server(factory: Factory, tmp_path: Path) -> None:
    nodes = node_list(factory, shipped("config"), work={})
    on_floor = part_of(nodes, factory, "floor", tmp_path / "floor")
    assert [node.name for node in on_floor] == ["discovery_server_floor", "scheduler", "arm_1", "foreman"]
    on_gpu = part_of(nodes, factory, "gpu_a", tmp_path / "gpu_a")
    assert [node.name for node in on_gpu] == ["discovery_server_gpu_a", "server_1", "server_2"]
    profiles = [Path(part[0].environment[PROFILES_FILE]).read_text() for part in (on_floor, on_gpu)]
    assert not any("<prefix>" in profile for profile in profiles)  # another identity at each start
    assert all(is_server_profile(part[0].environment[PROFILES_FILE]) for part in (on_floor, on_gpu))
    with pytest.raises(ConfigurationError, match=r"hosts.idle: nothing of the factory runs on this host"):
        part_of(nodes, factory, "idle", tmp_path)


def test_a_host_that_this_machine_is_not_is_warned_of(factory: Factory, capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_another_machine(factory, "gpu_a")
    assert not capsys.readouterr().out
    warn_of_another_machine(factory, "floor")
    assert "warning: 10.0.0.1 is not this machine's address: is this floor?" in capsys.readouterr().out


def test_the_descriptor_comes_before_what_was_set_and_an_option_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    factory = parse_factory(TEXT.replace("mode: server, servers: [floor, gpu_a]", "mode: peers, domain: 42"), "f.yaml")
    for name, value in {"ROS_DOMAIN_ID": "7", "ROS_STATIC_PEERS": "1.2.3.4", "ROS_DISCOVERY_SERVER": "1.2.3.4:5"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "OFF")
    prepare_environment(-1, discovery_environment(factory, "gpu_a"))
    assert os.environ["ROS_DOMAIN_ID"] == "42" and os.environ["ROS_STATIC_PEERS"] == "10.0.0.1;10.0.0.3"
    assert os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST" and "ROS_DISCOVERY_SERVER" not in os.environ
    prepare_environment(9, discovery_environment(factory, "gpu_a"))
    assert os.environ["ROS_DOMAIN_ID"] == "9"


def test_a_partition_is_put_into_the_profile_that_was_chosen(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    use_profile("large_images.xml", environment)
    use_partition("hall_3", tmp_path / "logs", environment)
    text = Path(environment[PROFILES_FILE]).read_text()
    assert text.count("<name>hall_3</name>") == 2 and "<segment_size>33554432" in text
    use_partition("hall_3", tmp_path, environment)  # is in it already
    assert Path(environment[PROFILES_FILE]).parent == tmp_path / "logs"


def test_a_partition_that_would_be_left_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "own.xml"
    own.write_text(shipped("config", "dds", "wan.xml").read_text())
    with pytest.raises(ConfigurationError, match=f"{PROFILES_FILE}.*leaves everything outside partition 'hall_3'"):
        use_partition("hall_3", tmp_path, {PROFILES_FILE: str(own)})
    with pytest.raises(ConfigurationError, match=r"RMW_IMPLEMENTATION.*partitions are made with Fast DDS"):
        use_partition("hall_3", tmp_path, {"RMW_IMPLEMENTATION": "rmw_cyclonedds_cpp"})
    with pytest.raises(ConfigurationError, match="cannot be read"):
        use_partition("hall_3", tmp_path, {PROFILES_FILE: str(tmp_path / "none.xml")})
    own.write_text("<name>hall_3</name>")
    use_partition("hall_3", tmp_path, environment := {PROFILES_FILE: str(own)})
    assert environment == {PROFILES_FILE: str(own)}


H200S = [Gpu(str(i), f"GPU-{i}{i}", "NVIDIA H200") for i in range(2)]


def verdicts(factory: Factory, host: str, gpus: list[Gpu], **environment: str) -> dict[str, Verdict]:
    return {finding.part: finding.verdict for finding in host_findings(factory, host, lambda: gpus, environment)}


def test_the_doctor_compares_a_machine_with_its_declaration(factory: Factory) -> None:
    right = verdicts(factory, "gpu_a", H200S)
    assert right["gpu_a: address"] is right["gpu_a: GPUs"] is Verdict.OK and "discovery server" in right
    assert verdicts(factory, "idle", []) == {"idle: address": Verdict.MISSING}
    for gpus in ([], H200S[:1]):
        assert verdicts(factory, "gpu_a", gpus)["gpu_a: GPUs"] is Verdict.MISSING
    others = [gpu._replace(name="NVIDIA L4") for gpu in H200S]
    assert verdicts(factory, "gpu_a", others)["gpu_a: GPUs"] is Verdict.NOTE
    assert verdicts(factory, "gpu_a", H200S, CUDA_VISIBLE_DEVICES="1")["gpu_a: GPUs"] is Verdict.MISSING
    assert verdicts(factory, "gpu_a", H200S, CUDA_VISIBLE_DEVICES="1,0")["gpu_a: GPUs"] is Verdict.OK
    named = parse_factory(TEXT.replace("{H200: 2}", "{H200: [GPU-00, GPU-77]}"))
    (found,) = [f.found for f in host_findings(named, "gpu_a", lambda: H200S, {}) if f.part == "gpu_a: GPUs"]
    assert found == "there is no GPU GPU-77; here: 2"
    mixed = parse_factory(TEXT.replace("{H200: 2}", "{H200: [1, GPU-11]}"))
    (found,) = [f.found for f in host_findings(mixed, "gpu_a", lambda: H200S, {}) if f.part == "gpu_a: GPUs"]
    assert found == "1 and GPU-11 are one GPU, GPU-11"
    with pytest.raises(ConfigurationError, match="no host is named 'gpu_b'"):
        verdicts(factory, "gpu_b", [])


def test_servers_that_would_share_the_first_of_several_gpus_are_named(tmp_path: Path) -> None:
    """`rfm up` without a host, where nobody gives them any."""
    models, text = shipped("config", "profiles"), shipped("config", "factory_quickstart.yaml").read_text()
    factory = parse_factory(text.replace("gpu_type: CPU", "gpu_type: H200"), "f.yaml")
    (warning,) = shared_gpu(factory, models, lambda: H200S, {})
    assert warning.startswith("server_1, server_2 take the first of 2 GPUs, all of them") and "`hosts`" in warning
    assert not shared_gpu(factory, models, lambda: H200S, {"CUDA_VISIBLE_DEVICES": "1"})
    assert not shared_gpu(factory, models, lambda: H200S[:1], {}) and not shared_gpu(factory, models, list, {})
    assert not shared_gpu(parse_factory(text, "f.yaml"), models, lambda: H200S, {})
    entries = (models / "models.yaml").read_text().replace("engine: bundle", "engine: remote")
    (tmp_path / "models.yaml").write_text(entries)
    assert not shared_gpu(factory, tmp_path, lambda: H200S, {})


def test_a_shell_is_told_what_the_processes_have(tmp_path: Path) -> None:
    file = tmp_path / "factory.yaml"
    file.write_text(TEXT.replace("mode: server", "partition: hall_3, domain: 42, namespace: hall_3, mode: server"))
    done = CliRunner().invoke(app, ["env", str(file), "--folder", str(tmp_path)], catch_exceptions=False)
    lines = done.stdout.splitlines()
    assert "export ROS_DOMAIN_ID=42" in lines and "export ROS_DISCOVERY_SERVER='10.0.0.1:11811;127.0.0.1:11811'" in lines
    assert "unset ROS_STATIC_PEERS" in lines and lines[-1] == "# --namespace hall_3"
    assert any(line.startswith(f"export {PROFILES_FILE}={tmp_path}") for line in lines)


def test_nobody_asks_for_admission_from_a_host_on_zenoh_alone() -> None:
    words = ["robot", str(shipped("config", "factory_zenoh.yaml")), "--task", "push", "--name", "push_2", "--host", "robots"]
    with pytest.raises(ConfigurationError, match=r"robots is on Zenoh alone.*have push_2 admitted on the factory's side"):
        CliRunner().invoke(app, words, catch_exceptions=False, standalone_mode=False)
