"""Members of a factory, each of which has a certificate of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Factory, RobotEntry
from ros2_rfm_serving.factory.nodes import NodeSpec, merged_parameters, node_list, robot_nodes
from ros2_rfm_serving.security.wire_table import ROWS, Role

EXECUTABLES = {
    "scheduler_node": Role.SCHEDULER,
    "model_server_node": Role.SERVER,
    "robot_node": Role.ROBOT,
    "metaworld_robot_node": Role.WORLD,
    "simulated_robot_node": Role.WORLD,
    "foreman_node": Role.FOREMAN,
    "zenoh_door_node": Role.DOOR,
    "zenoh_router_node": Role.ROUTER,
}
OTHERS = {
    "markers": Role.MARKERS,
    "recorder": Role.RECORDER,
    "observer": Role.OBSERVER,
    "dashboard": Role.DASHBOARD,
    "operator": Role.OPERATOR,
    "door": Role.DOOR,
    "router": Role.ROUTER,
}
"""Members of every factory, independent of its descriptor."""
FOREMAN = "foreman"
"""Name of the foreman; others are named `foreman_<host>`."""
LOCAL = ("localhost", "127.0.0.1", "::1")
CAMERA_LEAF = {"compressed": "image/compressed", "image": "image_raw"}
DEFAULT_TOPICS = {"state_topic": "state", "joint_topic": "joint_states", "sink_topic": "command"}


@dataclass(frozen=True, kw_only=True)
class Member:
    """One process."""

    name: str
    """Name that is unique in the factory, also of its enclave."""
    role: Role
    of: str = ""
    """Robot or server that it belongs to; empty: none."""
    addresses: tuple[str, ...] = LOCAL
    """Addresses under which others reach its endpoints."""
    topics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Topics of a robot or its world: name in the wire table -> topics that the robot's parameters replace it with."""


def members_of(factory: Factory, config_folder: Path, addresses: tuple[str, ...] = ()) -> dict[str, Member]:
    """Return the members by name. addresses: further addresses of all members' endpoints.

    Raises: `ConfigurationError` when a robot's parameter file is missing or contradicts the descriptor, or when its name implies
    the right to give commands.
    """
    found = _of_nodes(factory, node_list(factory, config_folder, work={}), addresses)
    found += [Member(name=name, role=role, addresses=(*LOCAL, *addresses)) for name, role in OTHERS.items()]
    return _with_worlds(found)


def members_of_robot(factory: Factory, robot: RobotEntry, config_folder: Path) -> dict[str, Member]:
    """Return a robot and its world by name; the descriptor need not declare them. Raises: as `members_of`."""
    return _with_worlds(_of_nodes(factory, robot_nodes(factory, robot, config_folder), ()))


def askers(service: str) -> frozenset[str]:
    """Return the members of every factory that may call a service of the wire table."""
    takes = next(row.takes for row in ROWS if row.name == service)
    return frozenset(name for name, role in OTHERS.items() if role & takes)


def may_ask(name: str, service: str) -> bool:
    """Return whether a member may call a service or action of the wire table by which people give commands."""
    takes = next(row.takes for row in ROWS if row.name == service)
    is_foreman = bool(takes & Role.FOREMAN) and (name == FOREMAN or name.startswith(f"{FOREMAN}_"))
    return is_foreman or name in askers(service)


def _of_nodes(factory: Factory, nodes: list[NodeSpec], addresses: tuple[str, ...]) -> list[Member]:
    topics = {node.namespace: own_topics(merged_parameters(node)) for node in nodes if node.executable == "robot_node"}
    return [_member(factory, node, topics, addresses) for node in nodes]


def _with_worlds(found: list[Member]) -> dict[str, Member]:
    members = {member.name: member for member in found}
    return members | {world.name: world for world in map(_world_of, found) if world and world.name not in members}


def _world_of(member: Member) -> Member | None:
    """Return the member for a robot's drivers, with the name of a simulated robot."""
    if member.role is not Role.ROBOT:
        return None
    return replace(member, name=f"{member.name}_world", role=Role.WORLD)


def _member(
    factory: Factory, node: NodeSpec, topics: Mapping[str, Mapping[str, tuple[str, ...]]], addresses: tuple[str, ...]
) -> Member:
    role = EXECUTABLES[node.executable]
    if role & (Role.ROBOT | Role.SERVER) and may_ask(node.name, "<robot>/execute_task"):
        raise ConfigurationError(
            f"{node.name!r} is the name of who orders, and of nobody else", key="name", fix="choose another name"
        )
    of = str(node.parameters.get("server") or node.parameters.get("robot") or "")
    host = (str(factory.hosts[node.host].address),) if node.host else ()
    own = topics.get(node.namespace, {}) if role & (Role.ROBOT | Role.WORLD) else {}
    return Member(name=node.name, role=role, of=of, addresses=(*LOCAL, *host, *addresses), topics=own)


def own_topics(parameters: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the topics of a robot's cameras, state and commands according to its parameters; below its namespace unless
    absolute."""
    given = dict(pair.split("=", 1) for pair in parameters.get("camera_topics", ()) if "=" in pair)
    kinds = dict(pair.split("=", 1) for pair in parameters.get("camera_types", ()) if "=" in pair)
    usual = str(parameters.get("camera_type", "compressed"))
    cameras = [name for name in parameters.get("cameras", ["front"]) if name]
    leaf = {name: CAMERA_LEAF.get(kinds.get(name, usual), CAMERA_LEAF["compressed"]) for name in cameras}
    named = {name: str(parameters.get(name, usual)) for name, usual in DEFAULT_TOPICS.items()}
    return {
        "<robot>/camera/<camera>/image/compressed": tuple(given.get(name, f"camera/{name}/{leaf[name]}") for name in cameras),
        "<robot>/state": (named["state_topic"],),
        "<robot>/joint_states": (named["joint_topic"],),
        "<robot>/command": (named["sink_topic"],),
    }
