"""Remote job that starts a node's process on another machine: carried files and variables, and those that the machine provides."""

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
"""Time for killing a process, and for its owner's answer."""


@dataclass(frozen=True, kw_only=True)
class Errand:
    node: NodeSpec
    files: Mapping[str, str]
    """Files that the node reads, below its folder."""
    environment: Mapping[str, str]
    fleet_namespace: str = ""
    log_level: str = "info"
    version: str = field(default_factory=lambda: versions()["package"])
    """Version of rfm_serving on the machine of `rfm up`."""

    def put(self, folder: Path) -> NodeSpec:
        """Write the files into the folder, and return the node with them.
        Raises: `ConfigurationError` when another version is installed here."""
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
    """Return the job that starts a node elsewhere; `environment` is this process's, in which all variables of DDS are set.

    num_gpus: number of GPUs that the node's actor reserves. Without one it sees none: since Ray 2.60 an actor with `num_gpus=0`
    keeps the `CUDA_VISIBLE_DEVICES` of its machine, and would use a GPU that Ray gave to another. Raises: `ConfigurationError`."""
    # `node_environment`: Ray sets numbers of threads of its own.
    told = {name: environment.get(name, "") for name in CARRIED} | node_environment(environment)
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
    """Return the time that these nodes' processes, which are asked at once, may take to end, and their owners to report it, s.
    Raises: `ConfigurationError` for an invalid file of its own."""
    return max((patience_s(node) for node in nodes), default=STOP_TIMEOUT_S) + ANSWERS_S


def _profile(environment: Mapping[str, str]) -> str:
    """Return the text of the Fast DDS profile in use here; empty: none."""
    file = environment.get(PROFILES_FILE) or environment.get(OLDER_PROFILES_FILE, "")
    if not file and Path(FILE_IN_THIS_FOLDER).exists():
        file = FILE_IN_THIS_FOLDER
    try:
        return Path(file).read_text(encoding="utf-8") if file else ""
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"cannot be read: {error}", file=file, key=PROFILES_FILE) from None


def _where_code_is() -> dict[str, str]:
    """Return the variable by which a checkout's module is found from any folder."""
    return {} if is_installed() else {"PYTHONPATH": str(SITE)}
