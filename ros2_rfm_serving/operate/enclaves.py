"""Who has a certificate: every process of a factory, in its enclave of `rfm security init`."""

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
"""Members that may look, and have nothing else in that process to prove."""


def secured(nodes: list[NodeSpec], folder: Path | None) -> list[NodeSpec]:
    """Each with its certificate. folder: None: nobody has one. Raises: `ConfigurationError` for somebody without."""
    if folder is None:
        return nodes
    check_enclaves((node.name for node in nodes), folder)
    return [replace(node, environment={**node.environment, **member_environment(folder, node.name)}) for node in nodes]


def secured_newcomer(nodes: list[NodeSpec], folder: Path, fix: str) -> list[NodeSpec]:
    """Robot and world each with its certificate; its foreman, who gives goals, with that of whoever asks for its admission.

    Raises: `ConfigurationError` for somebody without. fix: what issues to the robot.
    """
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
    """An enclave by whose authority, and revocations, a process can prove what it shows: of those that are on this machine the
    first. nodes: that are started here, and have one. folder: None: nobody has."""
    if folder is None:
        return None
    found = (Folder(folder).enclave(name) for name in (*LOOKS, *(node.name for node in nodes)))
    return next(filter(members, found), None)


def members(folder: Path | None) -> Path | None:
    """It, if it is a member's of `rfm security`, and not any folder with a certificate for TLS."""
    return folder if folder and (folder / IDENTITY_CA).is_file() else None


def check_enclaves(members: Iterable[str], folder: Path, fix: str = "rfm security init, for this descriptor") -> None:
    """Raises: `ConfigurationError` for somebody without a certificate."""
    for member in members:
        if not (Folder(folder).enclave(member) / CERTIFICATE).is_file():
            raise ConfigurationError(f"{member} has no certificate there", file=str(folder), key="--security", fix=fix)
