"""A factory's processes, with everything that another process manager has to know."""

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
"""Time for `rfm drain` to receive the server's status, beside the server's own time."""
END_S = 15.0
"""Time for any process to end in order, as in `rfm up`, and for the start of the command that asks it to."""


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
    """Text of its parameter file, which lies at `parameters/<name>.yaml` below `etc`."""
    environment: Mapping[str, str]
    secrets: tuple[str, ...] = ()
    """Environment variables whose values are not in the manifests."""
    gpu: str = ""
    """GPU type; empty: none."""
    device: str = ""
    """GPU of its host, as in CUDA_VISIBLE_DEVICES."""
    drain: list[str] = dataclasses.field(default_factory=list)
    """Command that runs before the process is asked to end; empty: none."""
    drain_s: float = 0.0
    """Time that the command may take, s."""
    door: int = 0
    """Port of its gateway; 0: none."""
    enclave: str = ""
    """Member whose certificate it has; empty: none."""

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def component(self) -> str:
        """Kind of the process, as a word."""
        return self.node.executable.removesuffix("_node").replace("_", "-")

    @property
    def host(self) -> str:
        return self.node.host

    @property
    def stop_s(self) -> int:
        """Maximum time of an orderly stop, s."""
        return round(self.drain_s + END_S + (self.drain_s if self.drain else 0.0))


@dataclass(frozen=True, kw_only=True)
class Plan:
    factory: Factory
    options: Options
    processes: tuple[Process, ...]
    files: Mapping[str, str]
    """Files that all processes read, below `etc`."""
    engines: frozenset[str]

    @property
    def title(self) -> str:
        """The factory's name, in one line."""
        return "".join(letter if letter.isprintable() else " " for letter in self.factory.name)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts with processes; a single empty name when the descriptor has no hosts."""
        return tuple(dict.fromkeys(process.host for process in self.processes))

    def beside(self, host: str) -> Process:
        """Return a process of a host that discovers the factory as any other would."""
        return next(process for process in self.on(host) if process.role is not Role.DISCOVERY)

    def watching(self, beside: Process) -> Process:
        """Return `rfm metrics` in the place of another process, with the observer's certificate."""
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
        """Return the command that reports the state of the factory, or of one of its servers, over HTTP."""
        of = ["--server", server] if server else []
        return rfm(self.options, "metrics", "--address", address, "--port", str(port), "--disk", disk, *of)


def rfm(options: Options, *words: str) -> list[str]:
    namespace = ["--namespace", options.namespace] if options.namespace else []
    return [*installed(options, "rfm"), *words, *namespace]


def installed(options: Options, executable: str) -> list[str]:
    """Return the command of an executable where it will be installed."""
    prefix = options.installation
    return [f"{prefix}/lib/rfm_serving/{executable}"] if prefix else command_of(executable)
