"""What manifests start is what `rfm up` starts: every process, word by word, with the same parameters and environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ros2_rfm_serving.factory.nodes import node_list
from ros2_rfm_serving.operate.deploy.files import slug
from ros2_rfm_serving.operate.deploy.options import Kind
from ros2_rfm_serving.operate.supervisor import Supervisor
from ros2_rfm_serving.ros.node.process import SUPERVISED
from ros2_rfm_serving.shipped import shipped
from test.unit.operate.deploy.cases import documents, environment, parsed, pods, services, shipped_factory, unit, words, written

FACTORIES = [
    ("factory_quickstart.yaml", "", "info"),
    ("factory_full.yaml", "/hall/b3/", "debug"),
    ("factory_foreign.yaml", "", "info"),
]
ARGUMENTS = "--ros-args"
WHERE = ("factory_file",)
"""Parameters that say where a file lies, and so differ."""


def first(text: str) -> Any:
    return parsed(text)[0]


def started(of: dict[str, list[str]]) -> tuple[list[str], dict[str, str]]:
    return words(of["ExecStart"][0]), environment(of)


def in_manifests(kind: Kind, texts: dict[str, str], name: str) -> tuple[list[str], dict[str, str], Any]:
    """The command, environment and parameters of a process."""
    if kind is Kind.KUBERNETES:
        made = pods(texts)[f"rfm-{slug(name)}"]["containers"][0]
        own = next(d for d in documents(texts) if d["kind"] == "ConfigMap" and d["metadata"]["name"] == f"rfm-{slug(name)}")
        told = {one["name"]: one["value"] for one in made["env"]}
        return made["command"], told, first(own["data"]["parameters.yaml"])
    parameters = first(texts[f"etc/parameters/{name}.yaml"])
    if kind is Kind.COMPOSE:
        service = services(texts)[name]
        return [word.replace("$$", "$") for word in service["command"]], service["environment"], parameters
    return *started(unit(texts[f"units/rfm-{name}.service"])), parameters


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(("factory", "namespace", "level"), FACTORIES)
def test_the_processes_are_those_of_rfm_up(tmp_path: Path, kind: Kind, factory: str, namespace: str, level: str) -> None:
    of = shipped_factory(factory)
    nodes = node_list(of[0], shipped("config"), fleet_namespace=namespace, work={"end_on_score": False})
    up = Supervisor(nodes, tmp_path, fleet_namespace=namespace, log_level=level)
    texts = written(of, kind, namespace=namespace, log_level=level)
    for process in up.processes:
        command, told, parameters = in_manifests(kind, texts, process.node.name)
        assert Path(command[0]).name == process.node.executable == Path(process.command[-len(command)]).name
        assert said(command) == said(process.command)
        assert up._environment.items() >= {k: v for k, v in told.items() if k in up._environment and k not in OF_A_MACHINE}.items()
        assert without(parameters) == without(first((tmp_path / f"{process.node.name}.yaml").read_text()))
    missing = {"PYTHONUNBUFFERED", "PYTHONWARNINGS", "RCUTILS_COLORIZED_OUTPUT", "OMP_NUM_THREADS", "OMP_WAIT_POLICY"} - set(told)
    assert not missing and SUPERVISED not in told, "nobody would be its supervisor"
    assert num_processes(kind, texts) == len(up.processes)


OF_A_MACHINE = ("HOME", "ROS_LOG_DIR", "ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE", "FASTDDS_DEFAULT_PROFILES_FILE", "PATH")


def said(command: list[str]) -> list[str]:
    """The arguments, but for the folder of the parameters."""
    arguments = command[command.index(ARGUMENTS) :]
    at = arguments.index("--params-file") + 1
    return [*arguments[:at], Path(arguments[at]).name, *arguments[at + 1 :]]


def without(parameters: Any) -> dict[str, Any]:
    return {name: value for name, value in parameters["/**"]["ros__parameters"].items() if name not in WHERE}


def num_processes(kind: Kind, texts: dict[str, str]) -> int:
    if kind is Kind.KUBERNETES:
        return len(pods(texts))
    return len(services(texts)) - 1 if kind is Kind.COMPOSE else sum(name.endswith(".service") for name in texts) - 1


@pytest.mark.parametrize("kind", Kind)
def test_files_lie_where_parameters_and_commands_say(kind: Kind) -> None:
    texts = written(shipped_factory("factory_quickstart.yaml"), kind, profiles=shipped("config", "profiles"))
    etc = "/etc/rfm_serving/"
    if kind is Kind.KUBERNETES:
        volume = next(v for v in pods(texts)["rfm-server-1"]["volumes"] if v["name"] == "etc")
        there = {item["path"] for source in volume["projected"]["sources"] for item in source["configMap"]["items"]}
        keys = {item["key"] for item in volume["projected"]["sources"][0]["configMap"]["items"]}
        assert keys == next(d for d in documents(texts) if d["metadata"]["name"] == "rfm-files")["data"].keys()
    else:
        there = {name.removeprefix("etc/") for name in texts if name.startswith("etc/")}
    command, _, parameters = in_manifests(kind, texts, "server_1")
    assert {"factory.yaml", "profiles/models.yaml", "profiles/cpu.csv"} < there
    assert command[command.index("--params-file") + 1].removeprefix(etc) in there
    assert parameters["/**"]["ros__parameters"]["profiles_folder"] == f"{etc}profiles"
    _, _, scheduler = in_manifests(kind, texts, "scheduler")
    assert scheduler["/**"]["ros__parameters"]["factory_file"] == f"{etc}factory.yaml"
