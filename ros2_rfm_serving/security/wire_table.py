"""Publishers and subscribers of each name on the graph: the wire table of docs/structures.md, by role.

`<robot>` and `<server>` stand for the member's own where it has one, and otherwise for all of them. A robot sends requests to any
server that the schedule selects, so that its `<server>` stands for all; so does a server's `<robot>`.
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple


class Role(enum.Flag):
    """Role of a certificate."""

    SCHEDULER = enum.auto()
    SERVER = enum.auto()
    ROBOT = enum.auto()
    WORLD = enum.auto()
    """A simulated robot's hardware, or the drivers of a real one."""
    FOREMAN = enum.auto()
    MARKERS = enum.auto()
    RECORDER = enum.auto()
    OBSERVER = enum.auto()
    """Read access: `rfm status`, `rfm why`, `rfm metrics`."""
    DASHBOARD = enum.auto()
    """Read access, and the commands that people give through its page."""
    OPERATOR = enum.auto()
    """Commands of a person: `rfm drain`, `rfm robot`, `ros2 action send_goal`."""
    DOOR = enum.auto()
    """Representative of robots that are not on this graph."""
    ROUTER = enum.auto()
    """Zenoh router, which forwards permitted messages and sends none itself."""


NOBODY = Role(0)
LOOKING = Role.OBSERVER | Role.DASHBOARD | Role.OPERATOR
RECORDING = Role.RECORDER
TELLING = Role.SCHEDULER | Role.SERVER | Role.ROBOT | Role.RECORDER | Role.DOOR
"""Roles that report themselves in `/diagnostics`."""


class Kind(enum.Enum):
    TOPIC = "topic"
    SERVICE = "service"
    ACTION = "action"


class Row(NamedTuple):
    name: str
    """Name below the factory's namespace."""
    kind: Kind
    gives: Role
    """Roles that publish the topic, offer the service, or execute the action."""
    takes: Role
    """Roles that subscribe, call, or send goals."""
    watches: Role = NOBODY
    """Roles that only subscribe to the feedback and status of an action."""


def _topic(name: str, gives: Role, takes: Role) -> Row:
    return Row(name, Kind.TOPIC, gives, takes)


def _service(name: str, gives: Role, takes: Role) -> Row:
    return Row(name, Kind.SERVICE, gives, takes)


SCHEDULER, SERVER, ROBOT, WORLD = Role.SCHEDULER, Role.SERVER, Role.ROBOT, Role.WORLD
FOREMAN, MARKERS, DASHBOARD, DOOR, OPERATOR = Role.FOREMAN, Role.MARKERS, Role.DASHBOARD, Role.DOOR, Role.OPERATOR
ORDERING = DASHBOARD | OPERATOR
OF_SERVER, OF_ROBOT = "rfm/servers/<server>", "<robot>/rfm"

ROWS = (
    _topic("rfm/schedule", SCHEDULER, SCHEDULER | SERVER | ROBOT | DOOR | LOOKING | RECORDING),
    _topic(f"{OF_SERVER}/status", SERVER, SCHEDULER | ROBOT | DOOR | LOOKING | RECORDING),
    _topic(f"{OF_SERVER}/observation", ROBOT | DOOR, SERVER | RECORDING),
    _topic(f"{OF_SERVER}/name", SERVER, SERVER | RECORDING),
    _topic(f"{OF_SERVER}/audit", SERVER, RECORDING),
    _service(f"{OF_SERVER}/open_session", SERVER, ROBOT | DOOR),
    _service(f"{OF_SERVER}/close_session", SERVER, ROBOT | DOOR),
    _service(f"{OF_SERVER}/reset_episode", SERVER, ROBOT | DOOR),
    _service(f"{OF_SERVER}/describe", SERVER, OPERATOR | DOOR),
    _service(f"{OF_SERVER}/get_schedule", SERVER, SCHEDULER | LOOKING),
    _service(f"{OF_SERVER}/order", SERVER, SERVER | ORDERING),
    Row(f"{OF_SERVER}/infer", Kind.ACTION, SERVER, OPERATOR),
    _topic(f"{OF_SERVER}/infer/_action/feedback", NOBODY, RECORDING),
    _topic(f"{OF_ROBOT}/action_chunk", SERVER, ROBOT | DOOR | MARKERS | DASHBOARD | RECORDING),
    _topic(f"{OF_ROBOT}/judgement", SERVER, ROBOT | DOOR | DASHBOARD | RECORDING),
    _topic(f"{OF_ROBOT}/plan", SERVER, ROBOT | DOOR | DASHBOARD | RECORDING),
    _topic(f"{OF_ROBOT}/refetch", SERVER, ROBOT | DOOR | RECORDING),
    _topic(f"{OF_ROBOT}/status", ROBOT | DOOR, SCHEDULER | MARKERS | LOOKING | RECORDING),
    _topic(f"{OF_ROBOT}/name", ROBOT | DOOR, ROBOT | DOOR | RECORDING),
    _topic(f"{OF_ROBOT}/audit", ROBOT, RECORDING),
    _topic(f"{OF_ROBOT}/markers", MARKERS, NOBODY),
    _service(f"{OF_ROBOT}/pause", ROBOT, ORDERING),
    _service(f"{OF_ROBOT}/resume", ROBOT, ORDERING),
    _service(f"{OF_ROBOT}/abort", ROBOT, ORDERING),
    _service(f"{OF_ROBOT}/order", ROBOT, FOREMAN | ORDERING),
    _topic("rfm/zenoh_door/name", DOOR, DOOR | RECORDING),
    _service("rfm/admit_robot", SCHEDULER, ORDERING),
    _service("rfm/release_robot", SCHEDULER, ORDERING),
    _service("rfm/replan", SCHEDULER, OPERATOR),
    _topic("rfm/audit", SCHEDULER, RECORDING),
    _topic("rfm/dashboard/audit", DASHBOARD, RECORDING),
    _service("rfm/recorder/save", RECORDING, OPERATOR),
    Row("<robot>/execute_task", Kind.ACTION, ROBOT, FOREMAN | ORDERING, RECORDING),
    _topic("<robot>/robot_description", MARKERS, MARKERS | RECORDING),
    _topic("<robot>/world/score", WORLD, FOREMAN | LOOKING | RECORDING),
    _topic("<robot>/camera/<camera>/image/compressed", WORLD, ROBOT | DASHBOARD),
    _topic("<robot>/state", WORLD, ROBOT | MARKERS | RECORDING),
    _topic("<robot>/joint_states", WORLD, ROBOT | MARKERS | RECORDING),
    _topic("<robot>/command", ROBOT, WORLD | RECORDING),
    _service("<robot>/reset", WORLD, ROBOT),
    _topic("rfm/processes", TELLING, LOOKING),
    _topic("/diagnostics", TELLING, LOOKING | RECORDING),
)
"""Table of all names. A name that begins with a slash is outside the namespace."""

EVERYBODYS = ("/rosout", "/parameter_events")
"""Topics that every node publishes."""
OF_EVERY_NODE = (
    "describe_parameters",
    "get_parameter_types",
    "get_parameters",
    "list_parameters",
    "set_parameters",
    "set_parameters_atomically",
    "get_type_description",
)
"""Services of each node itself, below its name. No member of a factory calls them."""
OF_LIFECYCLE_NODES = ("change_state", "get_state", "get_available_states", "get_available_transitions", "get_transition_graph")
ORDERED = "change_state"
"""Lifecycle service that people call: it drains a server."""
TRANSITIONS = "transition_event"
NODES = {
    SCHEDULER: "rfm/scheduler",
    SERVER: f"{OF_SERVER}/model_server",
    ROBOT: "<robot>/robot",
    WORLD: "<robot>/simulated_robot",
    FOREMAN: "rfm/foreman",
    MARKERS: "rfm/markers",
    RECORDING: "rfm/recorder",
    DOOR: "rfm/zenoh_door",
}
"""Names of nodes in a factory. Roles with read access have no services."""
LIFECYCLE = SERVER | ROBOT
_OWNERS = tuple((re.compile(re.sub(r"<\w+>", r"(\\w+)", node), re.ASCII), role) for role, node in NODES.items())


def owner_of(node: str) -> tuple[Role, str]:
    """Return the role of a node, and the robot or server that it belongs to, if any. node: its name below the factory's
    namespace."""
    for name, role in _OWNERS:
        if found := name.fullmatch(node):
            return role, (found.groups() or ("",))[0]
    return NOBODY, ""
