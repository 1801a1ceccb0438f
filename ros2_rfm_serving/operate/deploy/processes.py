"""A factory's processes, with all that whoever runs them elsewhere has to know."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.factory.nodes import WORLD_EXECUTABLES, NodeSpec
from ros2_rfm_serving.operate.deploy.options import Options
from ros2_rfm_serving.operate.executables import command_of
from ros2_rfm_serving.security.own import member_environment

HEARD_S = 5.0
"""For `rfm drain` to hear the server, beside what the server may take."""
END_S = 15.0
"""For any process to end in order, as `rfm up` gives it, and to start what asks it to."""


OBSERVER = "observer"
"""Member of every factory's security."""


class Role(enum.Enum):
    SCHEDULER = "scheduler_node"
    SERVER = "model_server_node"
    ROBOT = "robot_node"
    WORLD = "simulated_robot_node"
    FOREMAN = "foreman_node"
    DISCOVERY = "discovery_server_node"
    ROUTER = "zenoh_router_node"
    OTHER = ""

    @classmethod
    def of(cls, executable: str) -> Role:
        if executable in WORLD_EXECUTABLES:
            return cls.WORLD
        return next((role for role in cls if role.value == executable), cls.OTHER)


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
    enclave: str = ""
    """Whose certificate it has; empty: nobody's."""

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def component(self) -> str:
        """What kind of process it is, in a word."""
        return self.node.executable.removesuffix("_node").replace("_", "-")

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

    def beside(self, host: str) -> Process:
        """One of a host that hears the factory as any other would."""
        return next(process for process in self.on(host) if process.role is not Role.DISCOVERY)

    def watching(self, beside: Process) -> Process:
        """`rfm metrics` in the place of another process: with the certificate of somebody who looks."""
        if not beside.enclave:
            return beside
        environment = {**beside.environment, **member_environment(Path(self.options.keystore), OBSERVER)}
        return dataclasses.replace(beside, enclave=OBSERVER, environment=environment)

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
