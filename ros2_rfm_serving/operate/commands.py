"""How a node's process is started, whoever starts it: `rfm up`, the launch file, or the manifests of `rfm deploy`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ros2_rfm_serving.factory.nodes import NodeSpec

ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore",
        "RCUTILS_COLORIZED_OUTPUT": "0",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
)
USERS_OWN = ("PYTHONWARNINGS", "OMP_NUM_THREADS")
"""Of these, what the user has said."""


def node_environment(users: Mapping[str, str]) -> dict[str, str]:
    """What every node has beyond the environment of the user."""
    return {**ENVIRONMENT, **{name: users[name] for name in USERS_OWN if name in users}}


def full_namespace(node: NodeSpec, fleet_namespace: str) -> str:
    """Without a slash before it."""
    return "/".join(part for part in (fleet_namespace.strip("/"), node.namespace) if part)


def node_arguments(node: NodeSpec, parameters: str, *, fleet_namespace: str = "", log_level: str = "info") -> list[str]:
    """What follows the executable. parameters: the node's own parameter file."""
    namespace = f"__ns:=/{full_namespace(node, fleet_namespace)}"
    return ["--ros-args", "--params-file", parameters, "-r", namespace, "--log-level", log_level]
