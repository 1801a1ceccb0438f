"""A factory's processes, as `rfm up` starts them, with all that whoever runs them elsewhere has to know."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Catalogue, Factory
from ros2_rfm_serving.factory.dds import dds_profile
from ros2_rfm_serving.factory.nodes import NodeSpec, merged_parameters, node_list, parameter_file
from ros2_rfm_serving.operate.commands import ENVIRONMENT, node_arguments
from ros2_rfm_serving.operate.deploy.options import DOOR_TOKEN, Options
from ros2_rfm_serving.operate.executables import command_of
from ros2_rfm_serving.ros.server.settings import SPECS as SERVER_SPECS
from ros2_rfm_serving.shipped import shipped

WITHOUT_GPU = ("emulated", "openai", "remote")
"""Engines."""
NO_GPU = "CPU"
HEARD_S = 5.0
"""For `rfm drain` to hear the server, beside what the server may take."""
END_S = 15.0
"""For any process to end in order, as `rfm up` gives it, and to start what asks it to."""


class Role(enum.Enum):
    SCHEDULER = "scheduler_node"
    SERVER = "model_server_node"
    ROBOT = "robot_node"
    WORLD = "metaworld_robot_node"
    FOREMAN = "foreman_node"


@dataclass(frozen=True, kw_only=True)
class Process:
    node: NodeSpec
    role: Role
    command: list[str]
    parameters: str
    """Its parameter file, which lies at `parameters/<name>.yaml` below `etc`."""
    environment: Mapping[str, str]
    secrets: tuple[str, ...] = ()
    """Environment variables whose values are nowhere in the manifests."""
    gpu: str = ""
    """Type; empty: none."""
    device: str = ""
    """Which of its host's, as CUDA_VISIBLE_DEVICES has it."""
    drain: list[str] = dataclasses.field(default_factory=list)
    """The command before it is told to end; empty: none."""
    drain_s: float = 0.0
    """That the command may take."""
    door: int = 0
    """Its port; 0: none."""

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def host(self) -> str:
        return self.node.host

    @property
    def stop_s(self) -> int:
        """From being told to stop to having ended, at most."""
        return round(self.drain_s + END_S + (self.drain_s if self.drain else 0.0))


@dataclass(frozen=True, kw_only=True)
class Plan:
    factory: Factory
    options: Options
    processes: tuple[Process, ...]
    files: Mapping[str, str]
    """That all processes read, below `etc`."""
    engines: frozenset[str]

    @property
    def title(self) -> str:
        """The factory's name, in one line."""
        return "".join(letter if letter.isprintable() else " " for letter in self.factory.name)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Those that run anything; one without a name: the descriptor has none."""
        return tuple(dict.fromkeys(process.host for process in self.processes))

    def on(self, host: str) -> list[Process]:
        return [process for process in self.processes if process.host == host]

    @property
    def secrets(self) -> list[str]:
        return sorted({name for process in self.processes for name in process.secrets})

    def has(self, role: Role) -> bool:
        return any(process.role is role for process in self.processes)

    def metrics(self, address: str, port: int, disk: str, server: str = "") -> list[str]:
        """The command that says over HTTP how the factory is, or one of its servers."""
        of = ["--server", server] if server else []
        return rfm(self.options, "metrics", "--address", address, "--port", str(port), "--disk", disk, *of)


def rfm(options: Options, *words: str) -> list[str]:
    namespace = ["--namespace", options.namespace] if options.namespace else []
    return [*installed(options, "rfm"), *words, *namespace]


def installed(options: Options, executable: str) -> list[str]:
    """Where it will be."""
    prefix = options.installation
    return [f"{prefix}/lib/rfm_serving/{executable}"] if prefix else command_of(executable)


def plan(factory: Factory, catalogue: Catalogue, options: Options) -> Plan:
    """Raises: `ConfigurationError`."""
    work: dict[str, Any] | None = {"end_on_score": False} if options.foreman else None
    nodes = node_list(factory, shipped("config"), fleet_namespace=options.namespace, work=work, profiles=options.profiles)
    engines = {catalogue[c.model].engine: None for e in factory.robot_fleet for c in factory.tasks[e.task].components.values()}
    making = _Making(factory, catalogue, options, dds_profile(nodes).file, frozenset(engines))
    return Plan(
        factory=factory,
        options=options,
        processes=tuple(making.process(node) for node in nodes),
        files=dict(_files(factory, options)),
        engines=frozenset(engines),
    )


def _files(factory: Factory, options: Options) -> Iterator[tuple[str, str]]:
    yield "factory.yaml", Path(factory.file).read_text(encoding="utf-8")
    if options.profiles:
        for file in sorted(options.profiles.iterdir()):
            if file.suffix in (".csv", ".yaml"):
                yield f"profiles/{file.name}", file.read_text(encoding="utf-8")


@dataclass
class _Making:
    """Of a factory's processes, one after the other."""

    factory: Factory
    catalogue: Catalogue
    options: Options
    dds_profile: str
    engines: frozenset[str]
    num_doors: int = 0
    num_gpus: int = 0

    def process(self, node: NodeSpec) -> Process:
        role, etc = Role(node.executable), self.options.files
        node = dataclasses.replace(node, parameters={**node.parameters, **self._moved(node, etc)})
        made = Process(
            node=node,
            role=role,
            command=[*installed(self.options, node.executable), *self._arguments(node, etc)],
            parameters=parameter_file(merged_parameters(node)),
            environment=self._environment(node),
        )
        return self._server(made) if role is Role.SERVER else made

    def _arguments(self, node: NodeSpec, etc: str) -> list[str]:
        file, namespace = f"{etc}/parameters/{node.name}.yaml", self.options.namespace
        return node_arguments(node, file, fleet_namespace=namespace, log_level=self.options.log_level)

    def _moved(self, node: NodeSpec, etc: str) -> dict[str, Any]:
        """Parameters that name files: where these lie there."""
        places = {"factory_file": f"{etc}/factory.yaml", "profiles_folder": f"{etc}/profiles"}
        return {name: place for name, place in places.items() if name in node.parameters}

    def _environment(self, node: NodeSpec) -> dict[str, str]:
        prefix = self.options.installation
        dds = Path(prefix, "share", "rfm_serving", "config", "dds") if prefix else shipped("config", "dds")
        return {
            **ENVIRONMENT,
            "ROS_DOMAIN_ID": self.options.domain,
            "ROS_AUTOMATIC_DISCOVERY_RANGE": "SUBNET" if self.options.in_containers else "LOCALHOST",
            "FASTDDS_DEFAULT_PROFILES_FILE": str(dds / self.dds_profile),
        }

    def _server(self, made: Process) -> Process:
        given = merged_parameters(made.node)
        drain_s = float(given.get("drain_timeout_s", SERVER_SPECS["drain_timeout_s"].default)) + HEARD_S
        drain = rfm(self.options, "drain", made.name, "--within", f"{drain_s:g}")
        gpu_type = self.factory.gpu_types[made.name]
        gpu = gpu_type if gpu_type != NO_GPU and not self.engines <= set(WITHOUT_GPU) else ""
        device = made.node.device or str(self.num_gpus) if gpu else ""  # without hosts: one after the other
        self.num_gpus += bool(gpu)
        secrets = tuple(sorted(self._secrets(given)))
        served = dataclasses.replace(made, drain=drain, drain_s=drain_s, gpu=gpu, device=device, secrets=secrets)
        return self._with_door(served) if self.options.door else served

    def _secrets(self, parameters: Mapping[str, Any]) -> set[str]:
        """What the models of the factory and the server's overflow read from the environment."""
        models = {c.model for entry in self.factory.robot_fleet for c in self.factory.tasks[entry.task].components.values()}
        named = [value for model in models for key, value in self.catalogue[model].options.items() if key.endswith("_env")]
        return {str(name) for name in (*named, parameters.get("overflow_token_env")) if name}

    def _with_door(self, made: Process) -> Process:
        port = self.options.door + (self.num_doors if self.options.shares_addresses else 0)
        self.num_doors += 1
        if port > 65535:
            raise ConfigurationError(f"{port} is no port", key="--door", fix="begin with a lower one")
        door = {"gateway_port": port, "gateway_host": "0.0.0.0", "gateway_token_env": DOOR_TOKEN}
        node = dataclasses.replace(made.node, parameters={**made.node.parameters, **door})
        text, secrets = parameter_file(merged_parameters(node)), tuple(sorted({*made.secrets, DOOR_TOKEN}))
        return dataclasses.replace(made, node=node, parameters=text, door=port, secrets=secrets)
