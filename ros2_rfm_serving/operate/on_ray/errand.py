"""All that starts a node's process on another machine: what is carried there, and what is left to that machine."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ros2_rfm_serving.audit.versions import versions
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.environment import DOMAIN, NO_GPU, PEERS, RANGE, SERVERS, SUPER_CLIENT, VISIBLE
from ros2_rfm_serving.factory.nodes import NodeSpec
from ros2_rfm_serving.operate.carried import moved
from ros2_rfm_serving.operate.commands import node_environment
from ros2_rfm_serving.operate.executables import SITE, is_installed
from ros2_rfm_serving.operate.supervisor import STOP_TIMEOUT_S, patience_s
from ros2_rfm_serving.ros.node.middleware import FILE_IN_THIS_FOLDER, OLDER_PROFILES_FILE, PROFILES_FILE

CARRIED = (DOMAIN, RANGE, PEERS, SERVERS, SUPER_CLIENT, "RMW_IMPLEMENTATION", "RCUTILS_LOGGING_SEVERITY_THRESHOLD")
"""Variables whose values, or whose absence, all processes of a factory share. GPUs and secrets are the machine's own."""
PROFILE = "dds.xml"
ANSWERS_S = 10.0
"""For a process that had to be killed, and for the answer of its owner."""


@dataclass(frozen=True, kw_only=True)
class Errand:
    node: NodeSpec
    files: Mapping[str, str]
    """That the node reads, below its folder."""
    environment: Mapping[str, str]
    fleet_namespace: str = ""
    log_level: str = "info"
    version: str = field(default_factory=lambda: versions()["package"])
    """Of rfm_serving, where `rfm up` was started."""

    def put(self, folder: Path) -> NodeSpec:
        """The node, with its files in the folder. Raises: `ConfigurationError` where another version is installed here."""
        if (here := versions()["package"]) != self.version:
            problem = f"{socket.gethostname()} has rfm_serving {here}, and `rfm up` is of {self.version}"
            raise ConfigurationError(problem, fix="install the same version on every node")
        for name, text in self.files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        profile = {PROFILES_FILE: str(folder / PROFILE)} if PROFILE in self.files else {}
        environment = {**self.environment, **profile, **_where_code_is(), **self.node.environment}
        return dataclasses.replace(moved(self.node, str(folder)), environment=environment)


def errand(
    node: NodeSpec,
    files: Mapping[str, str],
    environment: Mapping[str, str],
    fleet_namespace: str,
    log_level: str,
    *,
    num_gpus: int = 0,
) -> Errand:
    """Return what starts a node elsewhere; `environment` is this process's, in which all that concerns DDS is decided.

    num_gpus: how many GPUs the node's actor reserves. Without one it sees none: since Ray 2.60 an actor with `num_gpus=0` keeps the
    `CUDA_VISIBLE_DEVICES` of its machine, and would take a GPU that Ray gave to another. Raises: `ConfigurationError`.
    """
    told = {name: environment.get(name, "") for name in CARRIED} | node_environment(environment)  # Ray has threads of its own mind
    told |= {} if num_gpus else {VISIBLE: NO_GPU}
    profile = _profile(environment)
    return Errand(
        node=node,
        files={**files, **({PROFILE: profile} if profile else {})},
        environment=told,
        fleet_namespace=fleet_namespace,
        log_level=log_level,
    )


def end_s(nodes: Iterable[NodeSpec]) -> float:
    """Return how long the processes of these nodes, which are asked at once, may take to end, and their owners to say so.

    Raises: `ConfigurationError` for a file of its own that is none.
    """
    return max((patience_s(node) for node in nodes), default=STOP_TIMEOUT_S) + ANSWERS_S


def _profile(environment: Mapping[str, str]) -> str:
    """The text of the Fast DDS profile in use here; empty: none."""
    file = environment.get(PROFILES_FILE) or environment.get(OLDER_PROFILES_FILE, "")
    if not file and Path(FILE_IN_THIS_FOLDER).exists():
        file = FILE_IN_THIS_FOLDER
    try:
        return Path(file).read_text(encoding="utf-8") if file else ""
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"cannot be read: {error}", file=file, key=PROFILES_FILE) from None


def _where_code_is() -> dict[str, str]:
    """A checkout's module is started by name, from whichever folder."""
    return {} if is_installed() else {"PYTHONPATH": str(SITE)}
