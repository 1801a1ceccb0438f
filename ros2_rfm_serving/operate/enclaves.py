"""Certificates of a factory's processes, each in its enclave of `rfm security init`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.nodes import NodeSpec
from ros2_rfm_serving.security.folder import CERTIFICATE, IDENTITY_CA, KEY, Folder
from ros2_rfm_serving.security.own import member_environment

OPERATOR = "operator"
LOOKS = ("observer", "dashboard", OPERATOR)
"""Members that may observe, and have nothing else in that process to sign."""


def secured(nodes: list[NodeSpec], folder: Path | None) -> list[NodeSpec]:
    """Return the nodes, each with its certificate. folder: None disables certificates.
    Raises: `ConfigurationError` when a node has none."""
    if folder is None:
        return nodes
    check_enclaves((node.name for node in nodes), folder)
    return [replace(node, environment={**node.environment, **member_environment(folder, node.name)}) for node in nodes]


def secured_newcomer(nodes: list[NodeSpec], folder: Path, fix: str) -> list[NodeSpec]:
    """Return the nodes of a dynamic robot and its world, each with its certificate.

    Its foreman, which sends goals, gets that of the operator who requests its admission. fix: command that issues a certificate
    to the robot. Raises: `ConfigurationError` when a node has none."""
    whose = [OPERATOR if node.executable == "foreman_node" else node.name for node in nodes]
    check_enclaves([OPERATOR], folder)
    check_enclaves(sorted({*whose} - {OPERATOR}), folder, fix)  # a robot before its world
    for name in sorted({OPERATOR, *whose}):
        if not (Folder(folder).enclave(name) / KEY).is_file():
            again = f"copy its enclave again, or, where it was revoked, rfm security rotate {folder} --member {name}"
            raise ConfigurationError(f"{name} has a certificate there and no key", file=str(folder), key="--security", fix=again)
    return [
        replace(node, environment={**node.environment, **member_environment(folder, name)})
        for node, name in zip(nodes, whose, strict=True)
    ]


def looks_by(folder: Path | None, nodes: Iterable[NodeSpec]) -> Path | None:
    """Return an enclave whose authority, and revocations, verify what a process shows: the first one on this machine.
    nodes: nodes that are started here, with certificates. folder: None without certificates."""
    if folder is None:
        return None
    found = (Folder(folder).enclave(name) for name in (*LOOKS, *(node.name for node in nodes)))
    return next(filter(members, found), None)


def members(folder: Path | None) -> Path | None:
    """Return the folder if it is a member's of `rfm security`, and not just any folder with a TLS certificate."""
    return folder if folder and (folder / IDENTITY_CA).is_file() else None


def check_enclaves(members: Iterable[str], folder: Path, fix: str = "rfm security init, for this descriptor") -> None:
    """Raise `ConfigurationError` when a member has no certificate."""
    for member in members:
        if not (Folder(folder).enclave(member) / CERTIFICATE).is_file():
            raise ConfigurationError(f"{member} has no certificate there", file=str(folder), key="--security", fix=fix)
