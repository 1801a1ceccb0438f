"""What `rfm deploy` promises of its manifests: rights, secrets, GPUs, probes, an end in order; and of the files that it writes."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Any

import pytest
import tomllib
from typer.testing import CliRunner

from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.deploy.files import dump, write
from ros2_rfm_serving.operate.deploy.options import Kind, Options
from ros2_rfm_serving.operate.deploy.planning import elsewhere
from test.unit.operate.deploy.cases import (
    GPU_FACTORY,
    Document,
    documents,
    environment,
    gpu_factory,
    parsed,
    planned,
    pods,
    services,
    shipped_factory,
    unit,
    words,
    written,
)


@pytest.fixture
def own_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's `--domain` is this process's: it is put back."""
    monkeypatch.setenv("ROS_DOMAIN_ID", "0")


SECRETS = {"CLOUD_TOKEN", "RFM_DOOR_TOKEN", "TEXT_KEY"}


def containers(texts: dict[str, str]) -> list[Document]:
    return [one for pod in pods(texts).values() for one in (*pod["containers"], *pod.get("initContainers", []))]


def test_a_pod_may_do_nothing_that_its_process_does_not_do(tmp_path: Path) -> None:
    texts = written(gpu_factory(tmp_path), Kind.KUBERNETES)
    for pod in pods(texts).values():
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
        assert not pod["automountServiceAccountToken"] and not {"hostNetwork", "hostIPC", "hostPID"} & pod.keys()
        assert not any("hostPath" in volume for volume in pod["volumes"])
    for container in containers(texts):
        rights = container["securityContext"]
        assert (
            rights["readOnlyRootFilesystem"]
            and not rights["allowPrivilegeEscalation"]
            and rights["capabilities"] == {"drop": ["ALL"]}
        )
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}


def test_a_service_of_compose_may_do_no_more(tmp_path: Path) -> None:
    for service in services(written(gpu_factory(tmp_path), Kind.COMPOSE)).values():
        assert service["user"] == "10001:10001" and service["read_only"] and service["cap_drop"] == ["ALL"]
        assert "network_mode" not in service and "privileged" not in service and service["restart"] == "unless-stopped"
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_what_servers_have_compiled_outlives_them(tmp_path: Path) -> None:
    """`/tmp` does not, in which PyTorch keeps it."""
    where, servers = "/var/cache/rfm_serving", {"server_1", "server_2", "server_3"}
    texts = written(gpu_factory(tmp_path), Kind.COMPOSE)
    found = services(texts)
    assert {name for name, service in found.items() if "XDG_CACHE_HOME" in service["environment"]} == servers
    for name in servers:
        assert found[name]["environment"]["XDG_CACHE_HOME"] == where
        assert {"type": "volume", "source": "cache", "target": where} in found[name]["volumes"]
    assert parsed(texts["compose.yaml"])[0]["volumes"] == {"cache": {}}
    assert f"install -d -o 10001 -g 10001 -m 700 {where}" in texts["Dockerfile"], "its user's, as a new volume is then"
    for claim, volume in (
        ("", {"emptyDir": {"sizeLimit": "4096Mi"}}),
        ("kernels", {"persistentVolumeClaim": {"claimName": "kernels"}}),
    ):
        texts = written(gpu_factory(tmp_path), Kind.KUBERNETES, cache_claim=claim)
        kept = {name: pod for name, pod in pods(texts).items() if {"name": "cache", **volume} in pod["volumes"]}
        assert len(kept) == len(servers)
        for pod in kept.values():
            assert {"name": "XDG_CACHE_HOME", "value": where} in pod["containers"][0]["env"]
            assert {"name": "cache", "mountPath": where} in pod["containers"][0]["volumeMounts"]
        assert ("PersistentVolumeClaim `kernels`" in texts["README.md"]) == bool(claim)
    for kind, name, problem in ((Kind.COMPOSE, "kernels", "claim of Kubernetes"), (Kind.KUBERNETES, "A B", "names no claim")):
        with pytest.raises(ConfigurationError, match=problem):
            Options(kind=kind, cache_claim=name)


def test_the_host_network_is_had_by_who_asks_for_it(tmp_path: Path) -> None:
    """With the host's shared memory: Fast DDS takes whoever has the same address to be on its machine."""
    of = gpu_factory(tmp_path)
    made = pods(written(of, Kind.KUBERNETES, host_network=True))
    assert all(pod["hostNetwork"] and pod["hostIPC"] for pod in made.values())
    assert not any(mount["mountPath"] == "/dev/shm" for pod in made.values() for mount in pod["containers"][0]["volumeMounts"])
    ports = [probe["ports"][0]["containerPort"] for pod in made.values() for probe in pod.get("initContainers", [])]
    assert len(ports) == len(set(ports)) == 4
    ipc = {(one["network_mode"], one["ipc"]) for one in services(written(of, Kind.COMPOSE, host_network=True)).values()}
    assert ipc == {("host", "host")}


@pytest.mark.parametrize("kind", Kind)
def test_secrets_are_named_and_nowhere_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, f"the-value-of-{name.lower()}")
    texts = written(gpu_factory(tmp_path), kind, door=8000)
    assert not any("the-value-of" in text for text in texts.values())
    assert all(name in texts["README.md"] for name in SECRETS)
    if kind is Kind.KUBERNETES:
        server = pods(texts)["rfm-server-1"]
        told = {one["name"]: one.get("valueFrom") for one in server["containers"][0]["env"]}
        assert all(told[name]["secretKeyRef"] == {"name": "rfm-secrets", "key": name} for name in SECRETS)
        assert not SECRETS & {one["name"] for one in server["initContainers"][0]["env"]}, "probes need none"
        assert not SECRETS & {one["name"] for one in pods(texts)["rfm-pack-1"]["containers"][0]["env"]}, "nor do robots"
    elif kind is Kind.COMPOSE:
        assert [name for name, one in services(texts).items() if "env_file" in one] == ["server_1", "server_2", "server_3"]
    else:
        told = unit(texts["units/rfm-server_1.service"])
        assert told["EnvironmentFile"] == ["/etc/rfm_serving/secrets.env"] and not SECRETS & environment(told).keys()
        assert "EnvironmentFile" not in unit(texts["units/rfm-pack_1.service"])


def test_every_server_has_a_gpu_of_its_own_if_its_type_is_one(tmp_path: Path) -> None:
    of = gpu_factory(tmp_path)
    made = pods(written(of, Kind.KUBERNETES))
    limits = {name: pod["containers"][0]["resources"].get("limits") for name, pod in made.items()}
    assert {name for name, limit in limits.items() if limit == {"nvidia.com/gpu": 1}} == {"rfm-server-1", "rfm-server-2"}
    assert (
        made["rfm-server-1"]["nodeSelector"] == {"rfm-serving/gpu-type": "nvidia-h200"}
        and "nodeSelector" not in made["rfm-server-3"]
    )
    composed = services(written(of, Kind.COMPOSE))
    devices = [one["deploy"]["resources"]["reservations"].get("devices") for one in composed.values()]
    assert [one[0]["device_ids"] for one in devices if one] == [["0"], ["1"]]
    units = written(of, Kind.SYSTEMD)
    visible = [environment(unit(units[f"units/rfm-server_{i}.service"])).get("CUDA_VISIBLE_DEVICES") for i in (1, 2, 3)]
    assert visible == ["0", "1", None]


def test_emulated_servers_want_no_gpu() -> None:
    made = pods(written(shipped_factory("factory_emulated.yaml"), Kind.KUBERNETES))
    assert "limits" not in made["rfm-server-1"]["containers"][0]["resources"]


def test_servers_and_the_scheduler_are_probed_by_what_hears_them() -> None:
    made = pods(written(shipped_factory("factory_quickstart.yaml"), Kind.KUBERNETES))
    assert {name for name, pod in made.items() if "initContainers" in pod} == {"rfm-scheduler", "rfm-server-1", "rfm-server-2"}
    server, (beside,) = made["rfm-server-1"]["containers"][0], made["rfm-server-1"]["initContainers"]
    assert beside["restartPolicy"] == "Always" and beside["command"][-2:] == ["--server", "server_1"]
    assert beside["command"][beside["command"].index("--port") + 1] == str(server["readinessProbe"]["httpGet"]["port"])
    paths = {kind: server[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
    composed = services(written(shipped_factory("factory_quickstart.yaml"), Kind.COMPOSE))
    assert "http://metrics:9464/readyz/server_2" in composed["server_2"]["healthcheck"]["test"][-1]


@pytest.mark.parametrize(("own", "drain_s"), [("", 5.0), ("20.0", 20.0)])
def test_whoever_ends_a_server_waits_until_it_is_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, drain_s: float
) -> None:
    of = gpu_factory(tmp_path)
    if own:
        from ros2_rfm_serving.ros.server.settings import SPECS

        monkeypatch.setitem(SPECS, "drain_timeout_s", SPECS["drain_timeout_s"]._replace(default=drain_s))
    pod = pods(written(of, Kind.KUBERNETES))["rfm-server-1"]
    hook = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    within_s = float(hook[hook.index("--within") + 1])
    assert hook[1:3] == ["drain", "server_1"] and within_s > drain_s
    assert pod["terminationGracePeriodSeconds"] > within_s + drain_s
    service = services(written(of, Kind.COMPOSE))["server_1"]
    assert service["pre_stop"] == [{"command": hook}] and float(service["stop_grace_period"][:-1]) > within_s + drain_s
    told = unit(written(of, Kind.SYSTEMD)["units/rfm-server_1.service"])
    assert words(told["ExecStop"][0].removeprefix("-"))[1:] == hook[1:]
    assert float(told["TimeoutStopSec"][0]) > within_s + drain_s and told["KillSignal"] == ["SIGTERM"]
    assert told["RestartPreventExitStatus"] == ["78"], "who cannot run as it is configured is not started again"


def test_doors_have_a_token_and_ports_of_their_own_where_they_share_addresses(tmp_path: Path) -> None:
    of = gpu_factory(tmp_path)
    texts = written(of, Kind.SYSTEMD, door=8000)
    told = [parsed(texts[f"etc/parameters/server_{i}.yaml"])[0]["/**"]["ros__parameters"] for i in (1, 2, 3)]
    assert [one["gateway_port"] for one in told] == [8000, 8001, 8002]
    assert {one["gateway_token_env"] for one in told} == {"RFM_DOOR_TOKEN"}
    doors = [d for d in documents(written(of, Kind.KUBERNETES, door=8000)) if d["kind"] == "Service"]
    assert [d["spec"]["ports"][0]["port"] for d in doors] == [8000, 8000, 8000]
    assert "gateway_port" not in written(of, Kind.SYSTEMD)["etc/parameters/server_1.yaml"], "closed unless asked for"
    with pytest.raises(ConfigurationError, match="--door: 65536 is no port"):
        written(of, Kind.SYSTEMD, door=65535)


def test_images_have_what_their_processes_need(tmp_path: Path, repository: Path) -> None:
    extras = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    def of_targets(text: str) -> dict[str, set[str]]:
        stages = re.split(r"^FROM \S+ AS ", text, flags=re.M)[1:]
        return {
            stage.split()[0]: set(re.findall(r"\.whl\)\[(.*?)\]", stage)[0].split(",")) for stage in stages if ".whl)[" in stage
        }

    own = of_targets(written(gpu_factory(tmp_path), Kind.KUBERNETES)["Dockerfile"])
    assert own == {"robot": {"metrics"}, "server": {"metrics", "lerobot", "openai", "gateway"}}
    demo = written(shipped_factory("factory_quickstart.yaml"), Kind.COMPOSE)["Dockerfile"]
    assert of_targets(demo) == {"robot": {"metrics"}, "server": {"metrics", "torch"}, "simulator": {"metaworld"}}
    assert {extra for needed in (*own.values(), *of_targets(demo).values()) for extra in needed} <= extras.keys()
    assert demo.count("USER 10001:10001") == 3
    images = {one["image"] for one in services(written(shipped_factory("factory_quickstart.yaml"), Kind.COMPOSE)).values()}
    assert images == {f"rfm_serving/{name}:latest" for name in of_targets(demo)}


@pytest.mark.parametrize("kind", Kind)
def test_the_same_descriptor_gives_the_same_bytes_and_nothing_is_overwritten(tmp_path: Path, kind: Kind) -> None:
    of, folder = gpu_factory(tmp_path / "f"), tmp_path / "out"
    texts = written(of, kind)
    assert write(folder, texts, force=False) == write(folder, written(of, kind), force=False) == []
    name = next(name for name in texts if "/" in name and "server" in name)
    (folder / name).write_text("mine")
    (folder / "note.txt").write_text("mine")
    older = (folder / name).with_stem("older")
    older.write_text("of a server that is no more")
    with pytest.raises(ConfigurationError, match=re.escape(f"{folder / name}: is there already, and says something else; --force")):
        write(folder, texts, force=False)
    assert (folder / name).read_text() == "mine"
    (warning,) = write(folder, texts, force=True)
    assert (folder / name).read_text() == texts[name] and (folder / "note.txt").read_text() == "mine"
    assert warning.startswith(f"{older} is not of this factory")


@pytest.mark.parametrize("there", [False, True])
def test_a_full_disk_leaves_everything_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    """The third file that is written finds no room: nothing new is there, and what was there says what it said."""
    folder, files = tmp_path / "out", {f"units/{i}.service": f"new {i}" for i in range(5)}
    before = dict.fromkeys(list(files)[:2], "old") if there else {}
    write(folder, before, force=False) if there else None
    whole, written = Path.write_text, list[Path]()

    def write_text(self: Path, text: str, **how: Any) -> int:
        written.append(self)
        if len(written) == 3:
            whole(self, text[:2], **how)
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return whole(self, text, **how)

    monkeypatch.setattr(Path, "write_text", write_text)
    with pytest.raises(ConfigurationError, match="cannot be written: No space left on device"):
        write(folder, files, force=True)
    monkeypatch.undo()
    left = {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}
    assert left == before and list(tmp_path.iterdir()) == ([folder] if there else []), "a part of it was left"
    assert write(folder, files, force=True) == []
    assert {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()} == files
    assert folder.stat().st_mode & 0o777 == (tmp_path / "out" / "units").stat().st_mode & 0o777, "for whoever reads it"


def test_gpu_types_that_would_have_one_label_are_refused(tmp_path: Path) -> None:
    """Or a pod of the one would be put on a node of the other."""
    text = GPU_FACTORY.replace("  - {num_servers: 1, gpu_type: CPU}", "  - {num_servers: 1, gpu_type: nvidia-h200}")
    of = gpu_factory(tmp_path, text=text)
    problem = "server_cluster.gpu_type: GPU types 'NVIDIA H200' and 'nvidia-h200' would both be the label 'nvidia-h200' of nodes"
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        written(of, Kind.KUBERNETES)
    assert written(of, Kind.COMPOSE), "others have no labels"
    with pytest.raises(ConfigurationError, match=re.escape("GPU type '_' makes no label")):
        written(gpu_factory(tmp_path, text=text.replace("nvidia-h200", "_")), Kind.KUBERNETES)


def test_a_changed_configuration_replaces_its_pod_and_no_other(tmp_path: Path) -> None:
    def digests(texts: dict[str, str]) -> dict[str, Any]:
        made = [d for d in documents(texts) if d["kind"] in ("Deployment", "StatefulSet")]
        return {d["metadata"]["name"]: d["spec"]["template"]["metadata"]["annotations"] for d in made}

    before = digests(written(gpu_factory(tmp_path), Kind.KUBERNETES))
    after = digests(written(gpu_factory(tmp_path), Kind.KUBERNETES, door=8000))
    assert {name for name in before if before[name] != after[name]} == {"rfm-server-1", "rfm-server-2", "rfm-server-3"}


@pytest.mark.parametrize(
    ("task", "problem"),
    [("pack_it__up", "would both be 'pack-it-up-1'"), ("p" * 50, "is too long a name there; rename the task")],
)
def test_names_that_kubernetes_cannot_tell_apart(tmp_path: Path, task: str, problem: str) -> None:
    fleet = f"robot_fleet:\n  - {{task: {task}, num_robots: 2}}\n  - {{task: pack_it_up, num_robots: 1}}\n"
    head, _, rest = GPU_FACTORY.partition("robot_fleet:")
    section = rest.partition("pack:\n")[2]
    text = f"{head}{fleet}{task}:\n{section}pack_it_up:\n{section}"
    of = gpu_factory(tmp_path, text=text)
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        written(of, Kind.KUBERNETES)
    assert written(of, Kind.COMPOSE), "others have no such limits"


def test_files_of_this_machine_that_parameters_and_models_name_are_warned_of(tmp_path: Path) -> None:
    here = tmp_path / "weights"
    here.mkdir()
    own = f"/**:\n  ros__parameters:\n    action_names: [a]\n    cameras: [side]\n    state_size: 3\n    command_sink: {here}\n"
    (tmp_path / "mine.yaml").write_text(own)
    factory, catalogue = gpu_factory(tmp_path, text=GPU_FACTORY.replace("pack:\n", "pack:\n  robot: mine.yaml\n"))
    entry = catalogue["own/policy"].model_copy(update={"options": {"path": str(here), "device": "cuda:0"}})
    catalogue = catalogue.model_copy(update={"models": {**catalogue.models, "own/policy": entry}})
    warnings = elsewhere(planned((factory, catalogue), Kind.COMPOSE), catalogue)
    assert [text.partition(" names ")[0] for text in warnings] == [
        "command_sink of pack_1",
        "command_sink of pack_2",
        "options.path of own/policy",
    ]


def test_any_text_is_read_again_as_it_was() -> None:
    texts = ["", "no", "0", "a\nb", "a \n b\t", "\n", "x: y # z", "é\u2028\x85", "- a", "'\"\\", " lead", "%{}", "true\n"]
    assert parsed(dump([{"all": texts}], "about"))[0]["all"] == texts


@pytest.mark.parametrize("text", ["1e3", "0o17", "-0o7", "12E03", "1.e5", "y", "N", "0x1f", "yes", "012", "1_000", "2026-01-01"])
def test_no_reader_takes_a_text_for_a_number_or_a_truth_value(text: str) -> None:
    """YAML 1.2, as Compose and Kubernetes read it, has other numbers than the YAML 1.1 of PyYAML; none is in quotes."""
    assert dump([{"word": text}], "about").endswith(f"word: '{text}'\n")


def test_a_factory_whose_name_looks_like_a_number(tmp_path: Path) -> None:
    texts = written(gpu_factory(tmp_path, "1e3.yaml"), Kind.COMPOSE)
    assert "\nname: '1e3'\n" in texts["compose.yaml"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "deploy: 0 kinds of manifests are asked for; give one of"),
        (["--compose", "--systemd"], "deploy: 2 kinds of manifests"),
        (["--systemd", "--host-network"], "--host-network: is for containers"),
        (["--systemd", "--prefix", "here"], "--prefix: 'here' cannot stand in a unit; give an absolute path"),
        (["--systemd", "--etc", "/a b"], "--etc: '/a b' cannot stand in a unit"),
        (["--compose", "--image", "Mine"], "--image: 'Mine' names no images"),
        (["--compose", "--tag", "a b"], "--tag: 'a b' is no tag"),
        (["--compose", "--profiles", "not_there"], "not_there"),
        (["--compose", "--domain", "500"], "there is no ROS domain '500'"),
    ],
)
@pytest.mark.usefixtures("own_domain")
def test_what_cannot_be_written_is_said(repository: Path, tmp_path: Path, arguments: list[str], problem: str) -> None:
    file = str(repository / "config" / "factory_quickstart.yaml")
    ran = CliRunner().invoke(app, ["deploy", *arguments, str(tmp_path / "out"), file])
    assert ran.exit_code != 0 and problem in str(ran.exception) and not (tmp_path / "out").exists()


@pytest.mark.usefixtures("own_domain")
def test_the_command_writes_all_of_it(repository: Path, tmp_path: Path) -> None:
    file = str(repository / "config" / "factory_emulated.yaml")
    ran = CliRunner().invoke(app, ["deploy", "--compose", str(tmp_path / "out"), file, "--domain", "7"])
    assert ran.exit_code == 0, ran.output
    there = {path.name for path in (tmp_path / "out").iterdir()}
    assert there == {"README.md", "Dockerfile", "Dockerfile.dockerignore", "compose.yaml", "etc"}
    assert parsed((tmp_path / "out" / "compose.yaml").read_text())[0]["services"]["server_1"]["environment"]["ROS_DOMAIN_ID"] == "7"


def test_options_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Options(kind=Kind.COMPOSE).door = 7  # type: ignore[misc]
