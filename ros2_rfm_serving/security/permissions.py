"""Permissions of each member as names on the graph: the wire table applied to one factory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ros2_rfm_serving.factory.graph_names import Names
from ros2_rfm_serving.security.members import Member
from ros2_rfm_serving.security.wire_table import (
    DASHBOARD,
    EVERYBODYS,
    LIFECYCLE,
    NODES,
    OF_EVERY_NODE,
    OF_LIFECYCLE_NODES,
    OF_ROBOT,
    OF_SERVER,
    OPERATOR,
    ORDERED,
    ROWS,
    SERVER,
    TRANSITIONS,
    Kind,
    Role,
    Row,
)

ACTION_SERVICES = ("send_goal", "cancel_goal", "get_result")
ACTION_TOPICS = ("feedback", "status")
PARTS = {Role.ROBOT: "<robot>", Role.WORLD: "<robot>", Role.SERVER: "<server>"}


@dataclass(frozen=True)
class Grants:
    """Absolute names, with a leading slash, that a member may use."""

    publishes: frozenset[str] = frozenset()
    hears: frozenset[str] = frozenset()
    serves: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()


class Permissions:
    """Permissions of the members of a factory."""

    def __init__(self, names: Names, members: Mapping[str, Member]) -> None:
        self._names = names
        self._all = {
            "<robot>": [member.of for member in members.values() if member.role is Role.ROBOT],
            "<server>": [member.of for member in members.values() if member.role is Role.SERVER],
        }
        self._topics = {member.of: member.topics for member in members.values() if member.role is Role.ROBOT}

    def of(self, member: Member) -> Grants:
        publishes, hears = set(EVERYBODYS) if member.role is not Role.ROUTER else set[str](), set[str]()
        serves, calls = set[str](), set[str]()
        for row in ROWS:
            gives, takes, watches = (bool(member.role & roles) for roles in (row.gives, row.takes, row.watches))
            for name in self._expanded(row, member) if gives or takes or watches else ():
                topics = [f"{name}/_action/{leaf}" for leaf in ACTION_TOPICS] if row.kind is Kind.ACTION else [name]
                services = [f"{name}/_action/{leaf}" for leaf in ACTION_SERVICES] if row.kind is Kind.ACTION else [name]
                if row.kind is not Kind.SERVICE:
                    publishes |= set(topics) if gives else set()
                    hears |= set(topics) if takes or watches else set()
                if row.kind is not Kind.TOPIC:
                    serves |= set(services) if gives else set()
                    calls |= set(services) if takes else set()
        own_topics, own_services = self._of_its_node(member)
        return Grants(
            frozenset(publishes | own_topics),
            frozenset(hears),
            frozenset(serves | own_services),
            frozenset(calls | self._orders(member)),
        )

    @property
    def of_robots(self) -> frozenset[str]:
        """Topics by which robots send requests and report their status."""
        named = [(OF_SERVER, "<server>", "observation"), (OF_ROBOT, "<robot>", "status")]
        return frozenset(
            self._absolute(f"{below.replace(part, owner)}/{leaf}") for below, part, leaf in named for owner in self._all[part]
        )

    def _expanded(self, row: Row, member: Member) -> Iterator[str]:
        """Yield the names of a row that belong to this member."""
        for servers in self._choices(row.name, "<server>", member):
            for robots in self._choices(servers, "<robot>", member):
                owner = robots.partition("/")[0]
                placed = self._topics.get(owner, {}).get(row.name)
                leaves = [robots] if placed is None else [leaf if leaf[0] == "/" else f"{owner}/{leaf}" for leaf in placed]
                yield from map(self._absolute, leaves)

    def _choices(self, name: str, part: str, member: Member) -> list[str]:
        if part not in name:
            return [name]
        owners: Iterable[str] = [member.of] if PARTS.get(member.role) == part else self._all[part]
        return [name.replace(part, owner) for owner in owners]

    def _of_its_node(self, member: Member) -> tuple[set[str], set[str]]:
        """Return (topics, services) below the node's own name."""
        if member.role not in NODES:
            return set(), set()
        node = self._node(member.role, member.of)
        leaves = [*OF_EVERY_NODE, *(OF_LIFECYCLE_NODES if member.role & LIFECYCLE else ())]
        return ({f"{node}/{TRANSITIONS}"} if member.role & LIFECYCLE else set()), {f"{node}/{leaf}" for leaf in leaves}

    def _orders(self, member: Member) -> set[str]:
        ordering = bool(member.role & (DASHBOARD | OPERATOR))
        return {f"{self._node(SERVER, server)}/{ORDERED}" for server in self._all["<server>"]} if ordering else set()

    def _node(self, role: Role, of: str) -> str:
        return self._absolute(NODES[role].replace("<robot>", of).replace("<server>", of))

    def _absolute(self, name: str) -> str:
        return name if name.startswith("/") else f"{self._names.root}/{name}"
