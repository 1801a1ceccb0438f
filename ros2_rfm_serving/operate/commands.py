"""Command line and environment of a node's process, for `rfm up`, the launch file and the manifests of `rfm deploy`."""

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
"""Variables of these that the user's environment overrides."""


def node_environment(users: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that every node has in addition to the user's environment."""
    return {**ENVIRONMENT, **{name: users[name] for name in USERS_OWN if name in users}}


def full_namespace(node: NodeSpec, fleet_namespace: str) -> str:
    """Return the node's namespace, without a leading slash."""
    return "/".join(part for part in (fleet_namespace.strip("/"), node.namespace) if part)


def node_arguments(node: NodeSpec, parameters: str, *, fleet_namespace: str = "", log_level: str = "info") -> list[str]:
    """Return the arguments after the executable. parameters: the node's own parameter file."""
    namespace = f"__ns:=/{full_namespace(node, fleet_namespace)}"
    return ["--ros-args", "--params-file", parameters, "-r", namespace, "--log-level", log_level]
