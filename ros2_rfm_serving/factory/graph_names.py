"""All names on the wire, in one place (docs/structures.md has the table)."""

from __future__ import annotations

import re

from ros2_rfm_serving.errors import ConfigurationError

NAME = re.compile(r"[A-Za-z]\w{0,99}", re.ASCII)
"""Valid name of a robot or a server: topics are named after it. A schedule with any other name is refused as a whole."""

SERVERS = "/rfm/servers/"


def own_name(name: str, robot: str) -> str:
    """Return the robot's own form of a server's topic name.

    All robots publish to a server under one name, and no message shows its sender. On Zenoh each robot has the topic also below its
    own name, `/<robot>/rfm/servers/...`, where a router's rules let no other process write.
    """
    root, below, rest = name.partition(SERVERS)
    return f"{root}/{robot}{below}{rest}"


def launched_namespaces(pushed: str, given: str) -> tuple[str, str]:
    """Return the namespace of a factory that a launch file starts, and the one that launch_ros puts below what was pushed.

    pushed: by `PushRosNamespace`; empty: nothing. given: by an argument or the descriptor; with a leading slash it is absolute, as
    every such name is. The first result has no leading slash; the second has one where `given` has.
    """
    own = given.strip("/")
    if given.startswith("/"):
        return own, f"/{own}"
    return "/".join(part for part in (pushed.strip("/"), own) if part), own


def pushed_namespace(namespace: str, root: str = "", *, is_robots: bool = True) -> str:
    """Return the part of a namespace before a node's own part, with a leading slash; empty: nothing.

    A node's own part begins with `rfm`, or is the name of a robot. A namespace of one other part may be a robot's. root: namespace
    of its factory, with a leading slash; it may have a part `rfm` as well. is_robots: False: the node belongs to no robot.
    """
    root = root if f"{namespace}/".startswith(f"{root}/") else ""
    parts = [part for part in namespace.removeprefix(root).split("/") if part]
    before = parts[: parts.index("rfm")] if "rfm" in parts else parts[:-1] if is_robots else parts
    return root + "".join(f"/{part}" for part in before)


class Names:
    """Absolute names on the graph. `root` is the factory's namespace; empty: the names of docs/structures.md without a prefix."""

    def __init__(self, root: str = "") -> None:
        """Validate the namespace. Raises: `ConfigurationError` for one that ROS does not accept."""
        self._root = "/" + root.strip("/") if root.strip("/") else ""
        if not re.fullmatch(r"(/[A-Za-z_]\w*)*", self._root, re.ASCII) or "__" in self._root:
            fix = "write names such as `plant/line_2`: letters, digits and single underscores, no digit first"
            raise ConfigurationError(f"{root!r} is no namespace", key="fleet_namespace", fix=fix)
        self.root = self._root
        """Namespace with a leading slash; empty: none."""
        self.schedule = f"{self._root}/rfm/schedule"
        self.admit_robot = f"{self._root}/rfm/admit_robot"
        self.release_robot = f"{self._root}/rfm/release_robot"
        self.replan = f"{self._root}/rfm/replan"
        self.audit = f"{self._root}/rfm/audit"
        self.processes = f"{self._root}/rfm/processes"
        self.dashboard_audit = f"{self._root}/rfm/dashboard/audit"

    def server(self, server: str, leaf: str) -> str:
        """Return /rfm/servers/<server>/<leaf>."""
        return f"{self._root}/rfm/servers/{server}/{leaf}"

    def robot(self, robot: str, leaf: str) -> str:
        """Return /<robot>/<leaf>."""
        return f"{self._root}/{robot}/{leaf}"

    def shared(self, name: str) -> tuple[str, str]:
        """Return the name and the robot from which `own_name` made this name; for any other name, the name itself and an empty
        robot."""
        before, below, rest = name.partition(SERVERS)
        robot = before.removeprefix(f"{self._root}/")
        is_own = bool(below) and name == own_name(f"{self._root}{below}{rest}", robot) and NAME.fullmatch(robot)
        return (f"{self._root}{below}{rest}", robot) if is_own else (name, "")

    def robot_of(self, topic: str, leaf: str) -> str:
        """Return the robot that a topic belongs to; empty: it is not `leaf` of a robot of this factory."""
        robot = topic.removeprefix(f"{self._root}/").removesuffix(f"/{leaf}")
        return robot if topic == self.robot(robot, leaf) and NAME.fullmatch(robot) else ""
