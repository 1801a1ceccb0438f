"""Factories to deploy, and what is read of their manifests."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import Any

import yaml

from ros2_rfm_serving.factory import Catalogue, Factory, load_factory
from ros2_rfm_serving.operate.deploy.options import Kind, Options
from ros2_rfm_serving.operate.deploy.planning import plan
from ros2_rfm_serving.operate.deploy.processes import Plan
from ros2_rfm_serving.operate.deploy.writing import files
from ros2_rfm_serving.shipped import shipped

Document = dict[str, Any]
PREFIX = "/opt/rfm"
GPU_FACTORY = """
server_cluster:
  - {num_servers: 2, gpu_type: NVIDIA H200, overflow: {url: "wss://gpus.example.com", round_trip_ms: 90, token_env: CLOUD_TOKEN}}
  - {num_servers: 1, gpu_type: CPU}
robot_fleet:
  - {task: pack, num_robots: 2}
pack:
  pipeline: {action_period_ms: 200}
  components:
    system1: {model: own/policy, prompt: "pack it: 100 % of $HOME, \\"now\\"\\t\\n", slo_ms: 300}
    monitor: {model: own/judge, prompt: "done?", freq_hz: 1, slo_ms: 2000}
"""
CATALOGUE = """
models:
  own/policy:
    engine: lerobot
    gpus: {NVIDIA H200: {memory_gb: 8, load_s: 20, source: a test}}
  own/judge:
    engine: openai
    output: judgement
    options: {base_url: "http://text.example.com/v1", api_key_env: TEXT_KEY}
    gpus: {CPU: {memory_gb: 1, load_s: 1, source: a test}}
"""


HOSTS = """
hosts:
  floor: {address: 10.0.0.1, gpus: {CPU: 1}, robots: [pack]}
  gpu_a: {address: 10.0.0.2, gpus: {NVIDIA H200: 1}}
  gpu_b: {address: 10.0.0.3, gpus: {NVIDIA H200: [3]}}
"""


def with_hosts(discovery: str = "{}") -> str:
    return f"{GPU_FACTORY}{HOSTS}discovery: {discovery}\n"


def shipped_factory(name: str) -> tuple[Factory, Catalogue]:
    return load_factory(shipped("config", name)), Catalogue.load(shipped("config", "profiles", "models.yaml"))


def gpu_factory(folder: Path, name: str = "packing.yaml", text: str = GPU_FACTORY) -> tuple[Factory, Catalogue]:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / "models.yaml").write_text(CATALOGUE)
    return load_factory(folder / name), Catalogue.load(folder / "models.yaml")


def planned(of: tuple[Factory, Catalogue], kind: Kind, **options: Any) -> Plan:
    prefix = {"prefix": PREFIX} if kind is Kind.SYSTEMD else {}
    return plan(*of, Options(kind=kind, **{**prefix, **options}))


def written(of: tuple[Factory, Catalogue], kind: Kind, **options: Any) -> dict[str, str]:
    return files(planned(of, kind, **options))


@functools.lru_cache(512)
def parsed(text: str) -> list[Any]:
    return list(yaml.load_all(text, Loader=yaml.CSafeLoader))


def documents(texts: dict[str, str]) -> list[Document]:
    """Of Kubernetes."""
    return [one for name, text in texts.items() if name.startswith("manifests/") for one in parsed(text)]


def pods(texts: dict[str, str]) -> dict[str, Document]:
    """Name of the process, as Kubernetes has it -> its pod."""
    workloads = [one for one in documents(texts) if one["kind"] in ("Deployment", "StatefulSet")]
    return {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in workloads}


def services(texts: dict[str, str]) -> dict[str, Document]:
    """Of Compose."""
    projects = [parsed(text)[0] for name, text in texts.items() if name.endswith("compose.yaml")]
    return {name: service for project in projects for name, service in project["services"].items()}


def unit(text: str) -> dict[str, list[str]]:
    """Keys of all sections of a systemd unit; values as a process gets them, but for line breaks."""
    lines = [line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return {key: [value for name, _, value in lines if name == key] for key, _, _ in lines}


def words(line: str) -> list[str]:
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line)]


def environment(of: dict[str, list[str]]) -> dict[str, str]:
    return dict(word.split("=", 1) for line in of["Environment"] for word in words(line))
