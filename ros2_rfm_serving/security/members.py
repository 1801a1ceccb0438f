"""Who belongs to a factory, and so has a certificate of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Factory, Robot
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
"""Of every factory, whatever its descriptor says."""
FOREMAN = "foreman"
"""And `foreman_<host>`."""
LOCAL = ("localhost", "127.0.0.1", "::1")
CAMERA_LEAF = {"compressed": "image/compressed", "image": "image_raw"}
DEFAULT_TOPICS = {"state_topic": "state", "joint_topic": "joint_states", "sink_topic": "command"}


@dataclass(frozen=True, kw_only=True)
class Member:
    """One process."""

    name: str
    """Unique in the factory, and of its enclave."""
    role: Role
    of: str = ""
    """Whose robot or server it is; empty: nobody's."""
    addresses: tuple[str, ...] = LOCAL
    """That others reach its doors under."""
    topics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of a robot or its world: name in the wire table -> the topics that its parameters put in its place."""


def members_of(factory: Factory, config_folder: Path, addresses: tuple[str, ...] = ()) -> dict[str, Member]:
    """By name. addresses: further ones, that the doors of all are reached under.

    Raises: `ConfigurationError` when a robot's parameter file is missing or contradicts the descriptor, or its name says that it
    may order something.
    """
    found = _of_nodes(factory, node_list(factory, config_folder, work={}), addresses)
    found += [Member(name=name, role=role, addresses=(*LOCAL, *addresses)) for name, role in OTHERS.items()]
    return _with_worlds(found)


def members_of_robot(factory: Factory, robot: Robot, config_folder: Path) -> dict[str, Member]:
    """By name: a robot and its world, of a descriptor that need not name it. Raises: as `members_of`."""
    return _with_worlds(_of_nodes(factory, robot_nodes(factory, robot, config_folder), ()))


def askers(service: str) -> frozenset[str]:
    """Of every factory's members, those who may call a service of the wire table."""
    takes = next(row.takes for row in ROWS if row.name == service)
    return frozenset(name for name, role in OTHERS.items() if role & takes)


def may_ask(name: str, service: str) -> bool:
    """Whether a member may call a service, or ask for an action, of the wire table that people order by."""
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
    """A robot's drivers, as a simulated one's are named."""
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
    """Where a robot's parameters put its cameras, state and commands; below its namespace unless absolute."""
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
