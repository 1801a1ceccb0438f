"""docs/structures.md has every topic, service and action that the nodes of a factory make, and none that they do not; and what
certificates allow is what the nodes do, and no more."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import rclpy
from domain_coordinator import domain_id
from rclpy.action.graph import get_action_names_and_types
from rclpy.node import Node

from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.ros.foreman_node import ForemanNode
from ros2_rfm_serving.ros.markers_node import MarkersNode
from ros2_rfm_serving.ros.metaworld_robot_node import MetaworldRobotNode
from ros2_rfm_serving.ros.model_server_node import ModelServerNode
from ros2_rfm_serving.ros.monitor.hands import Hands
from ros2_rfm_serving.ros.monitor.recorder import RecorderNode
from ros2_rfm_serving.ros.monitor.words import Words
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.observer_node import ObserverNode
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.scheduler_node import SchedulerNode
from ros2_rfm_serving.ros.wire.qos import Names
from ros2_rfm_serving.ros.zenoh.door import ZenohDoorNode
from ros2_rfm_serving.ros.zenoh_door_node import SPECS
from ros2_rfm_serving.security.members import Member, own_topics
from ros2_rfm_serving.security.permissions import Grants, Permissions
from ros2_rfm_serving.security.wire_table import NODES, ROWS, Role
from test.domains import next_domain

from .test_scheduler_node import FACTORY

ARM = Path(__file__).parents[2] / "config" / "robots" / "metaworld_arm.urdf"
SERVER = "/rfm/servers/server_1/model_server"
EVERY_NODE = (
    r"/(rosout|parameter_events)|.*/(get|set|list|describe)_parameter\w*|.*/set_parameters_atomically"
    r"|.*/(get_type_description|get_logger_levels|set_logger_levels)"
)
LIFECYCLE = r".*/(transition_event|change_state|get_state|get_available_\w+|get_transition_graph)"
ACTIONS = r".*/_action/\w+"
MEMBERS = {
    member.name: member
    for member in (
        Member(name="scheduler", role=Role.SCHEDULER),
        Member(name="server_1", role=Role.SERVER, of="server_1"),
        Member(name="server_2", role=Role.SERVER, of="server_2"),
        Member(name="arm_1", role=Role.ROBOT, of="arm_1", topics=own_topics({"cameras": ["front", "side"]})),
        Member(name="arm_2", role=Role.ROBOT, of="arm_2", topics=own_topics({})),
        Member(name="arm_1_world", role=Role.WORLD, of="arm_1", topics=own_topics({"cameras": ["front", "side"]})),
        Member(name="foreman", role=Role.FOREMAN),
        Member(name="markers", role=Role.MARKERS),
        Member(name="recorder", role=Role.RECORDER),
        Member(name="dashboard", role=Role.DASHBOARD),
        Member(name="door", role=Role.DOOR),
    )
}
NODE_OF = {
    "scheduler": "scheduler",
    "server_1": "model_server",
    "arm_1": "robot",
    "arm_1_world": "simulated_robot",
    "foreman": "foreman",
    "markers": "markers",
    "recorder": "recorder",
    "dashboard": "rfm_observer",
    "door": "zenoh_door",
}
"""Here all are in the root namespace; a factory has each in its own (`security.wire_table.NODES`)."""
NOT_YET = {
    "server_1": r"/arm_\d/rfm/(judgement|plan|refetch)|.*/order",  # replies of kinds that nobody was given yet; its own, to drain
    "arm_1": r"/arm_1/(camera/side/.*|joint_states)",  # as its parameters say: here one camera, and the state is an array
    # While a page shows them; with certificates.
    "dashboard": r".*/(order|get_schedule)|/diagnostics|/arm_\d/(camera/.*|rfm/(action_chunk|judgement|plan))|/rosout",
    "recorder": r"/arm_\d/rfm/(judgement|plan|refetch)|/rosout",  # which nobody publishes yet
    "foreman": r".*/order",  # with certificates
    "scheduler": r".*/get_schedule",  # asked of servers that are there when it starts
    "door": r"/arm_\d/rfm/.*|/rfm/servers/.*|/rfm/schedule|/rosout",  # of robots that are there on Zenoh
    "markers": r"/arm_\d/.*|/rosout",  # while somebody looks
}
"""Allowed, and used at other times than this."""
OF_OTHERS = r"/arm_2/.*|/rfm/servers/server_2/.*"
"""Who is in the descriptor and not started here."""


class Graph(NamedTuple):
    """All that a small factory has on it."""

    types: dict[str, str]
    """Name -> type."""
    used: dict[str, Grants]
    """By node: what it publishes, hears, serves and calls."""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graph]:
    tmp_path = tmp_path_factory.mktemp("factory")
    with domain_id(selector=next_domain) as domain, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROS_DOMAIN_ID", str(domain))
        yield from running(tmp_path)


def running(tmp_path: Path) -> Iterator[Graph]:
    (tmp_path / "factory.yaml").write_text(FACTORY)
    parameters = [
        f"scheduler:factory_file:={tmp_path / 'factory.yaml'}",
        "scheduler:look_around_s:=0.0",
        "robot:robot:=arm_1",
        "simulated_robot:robot:=arm_1",
        "foreman:robots:=[arm_1]",
        "foreman:end_on_score:=true",
        f"markers:description_file:={ARM}",
        f"recorder:folder:={tmp_path / 'incidents'}",
        "recorder:flight_s:=5.0",
    ]
    (tmp_path / "server.yaml").write_text(f"{SERVER}: {{ros__parameters: {{server: server_1, refetch_after_s: 0.1}}}}\n")
    placed = [
        "--params-file",
        str(tmp_path / "server.yaml"),
        "-r",
        f"model_server:__ns:={SERVER.rpartition('/')[0]}",
    ]  # orders go to what lies there
    rclpy.init(args=["--ros-args", *placed, *[part for p in parameters for part in ("-p", p)]])
    observer = ObserverNode(Board(["arm_1"], ["server_1"]))
    words, hands = Words(observer, Names()), Hands(observer, Names())
    for action, target in (("pause", "arm_1"), ("resume", "arm_1"), ("abort", "arm_1"), ("drain", "server_1"), ("admit", "arm_1")):
        hands.order(action, target, "arm")
    hands.order("release", "arm_2", "arm")
    hands.order("task", "arm_1", "")
    door = ZenohDoorNode(SPECS)
    door.claim()
    nodes: list[Node] = [
        SchedulerNode(),
        ModelServerNode(),
        MetaworldRobotNode(),
        RobotNode(),
        ForemanNode(),
        MarkersNode(),
        RecorderNode(),
        door,
        observer,
    ]
    spinner = executor()
    for node in nodes:
        spinner.add_node(node)
    try:
        yield settled(spinner, nodes, observer)
    finally:
        spinner.shutdown()
        words.close()
        for node in nodes:
            getattr(node, "stop", lambda: None)()
            node.destroy_node()
        rclpy.try_shutdown()


def used_by(node: Node, observer: Node) -> Grants:
    name, namespace = node.get_name(), node.get_namespace()
    asked = (
        observer.get_publisher_names_and_types_by_node,
        observer.get_subscriber_names_and_types_by_node,
        observer.get_service_names_and_types_by_node,
        observer.get_client_names_and_types_by_node,
    )
    return Grants(*(frozenset(found for found, _ in ask(name, namespace)) for ask in asked))


def settled(spinner: object, nodes: list[Node], observer: Node) -> Graph:
    """What there is when everybody does what it may, the replies to the robot are offered, and nobody has begun anything for three
    seconds; or after two minutes, on which a busy machine may spend all of them."""
    found: dict[str, str] = {}
    used: dict[str, Grants] = {}
    end_s = changed_s = time.monotonic()
    while (time.monotonic() < changed_s + 3.0 or not is_complete(found, used)) and time.monotonic() < end_s + 120.0:
        for _ in range(5):
            spinner.spin_once(timeout_sec=0.05)  # type: ignore[attr-defined]
        listed = [
            observer.get_topic_names_and_types(),
            observer.get_service_names_and_types(),
            get_action_names_and_types(observer),
        ]
        now = {name: types[0].rpartition("/")[2] for kind in listed for name, types in kind}
        before, used = used, {node.get_name(): used_by(node, observer) for node in nodes}
        if now.keys() - found.keys() or used != before:
            changed_s = time.monotonic()
        found |= now
    assert "/arm_1/rfm/action_chunk" in found, sorted(found)
    ignored = re.compile(f"{EVERY_NODE}|{LIFECYCLE}|{ACTIONS}")
    return Graph({name: kind for name, kind in found.items() if not ignored.fullmatch(name)}, used)


def is_complete(found: dict[str, str], used: dict[str, Grants]) -> bool:
    return "/arm_1/rfm/action_chunk" in found and not any(differences(used, name)[1] for name in NODE_OF)


def differences(used: dict[str, Grants], name: str) -> tuple[set[str], set[str]]:
    """What a member's node uses and may not, and what it may and nobody explains why it does not."""
    member, node = MEMBERS[name], NODE_OF[name]
    home = NODES[member.role].replace("<robot>", member.of).replace("<server>", member.of) if member.role in NODES else node
    allowed = Permissions(Names(), MEMBERS).of(member)
    placed = [frozenset(re.sub(rf"^/{node}/", f"/{home}/", one) for one in names) for names in vars(used[node]).values()]
    does = Grants(*placed)
    missing = {one for kind in vars(does) for one in vars(does)[kind] - vars(allowed)[kind]}
    spare = {one for kind in vars(does) for one in vars(allowed)[kind] - vars(does)[kind]}
    explained = re.compile(f"{NOT_YET.get(name, '')}|{OF_OTHERS}")
    return missing - {f"/{node}/get_type_description"}, {one for one in spare if not explained.fullmatch(one)}


def table(repository: Path) -> dict[str, str]:
    """Pattern of names -> the cell that says what kind they are."""
    text = (repository / "docs" / "structures.md").read_text().partition("## The wire")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| `")]
    patterns: dict[str, str] = {}
    for names, kind, *_ in rows:
        folder = ""
        for name in re.findall(r"`([^`]+)`", names):
            full = name if name.startswith("/") else f"{folder}/{name}"
            folder = full.rpartition("/")[0]
            patterns[re.sub(r"<\w+>", r"[^/]+", full)] = kind
    return patterns


def test_the_table_of_the_wire_is_the_wire(repository: Path, graph: Graph) -> None:
    patterns = table(repository)
    rows = {name: [pattern for pattern in patterns if re.fullmatch(pattern, name)] for name in graph.types}
    assert not [f"{name}: {graph.types[name]}" for name, row in rows.items() if not row], "not in docs/structures.md"
    used = {pattern for row in rows.values() for pattern in row}
    assert not [pattern for pattern in patterns if pattern not in used], "in docs/structures.md, and nobody makes it"
    typed = {name: patterns[row[0]] for name, row in rows.items() if "`" in patterns[row[0]]}
    assert not [
        f"{name} is {graph.types[name]}" for name, kind in typed.items() if graph.types[name] not in re.findall(r"\w+", kind)
    ]


@pytest.mark.parametrize("name", NODE_OF)
def test_a_certificate_allows_what_its_node_does_and_nothing_else(graph: Graph, name: str) -> None:
    missing, spare = differences(graph.used, name)
    assert not missing, "used, and not allowed"
    assert not spare, "allowed, and nobody's"


def test_the_table_of_permissions_is_the_wires(repository: Path) -> None:
    """Every row of docs/structures.md has somebody who gives it, and no other name is in the table."""
    patterns = list(table(repository))
    filled = {re.sub(r"<\w+>", "x", f"/{row.name.removeprefix('/')}") for row in ROWS if "/_action/" not in row.name}
    assert not [name for name in filled if not any(re.fullmatch(pattern, name) for pattern in patterns)]
    assert not [pattern for pattern in patterns if not any(re.fullmatch(pattern, name) for name in filled)]
