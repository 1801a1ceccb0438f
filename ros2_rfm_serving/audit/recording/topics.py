"""Selection of a factory's topics for a recording: inputs of decisions, and decisions."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ros2_rfm_serving.audit.chain import OWN

OURS = "rfm_serving/"
ROBOT_STATUS, OBSERVATION = "rfm_serving/msg/RobotStatus", "rfm_serving/msg/Observation"
CAMERAS = frozenset({"sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/Image", "sensor_msgs/msg/CameraInfo"})
FOR_EYES = frozenset({"visualization_msgs/msg/MarkerArray", "visualization_msgs/msg/Marker"})
"""Types that are derived from others."""
EVERYBODYS = frozenset({"/diagnostics", "/tf", "/tf_static"})
TASK = re.compile(r"/_action/(status|feedback)$")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Rule for recorded topics. Patterns are those of file names: `/push_*/state`."""

    namespace: str = ""
    """Namespace of the factory."""
    cameras: bool = False
    """True to record camera topics; the models' images are in the observations anyway."""
    topics: tuple[str, ...] = field(default_factory=tuple)
    """Patterns of topics beside those of the factory."""
    exclude: tuple[str, ...] = field(default_factory=tuple)

    def of(self, graph: Iterable[tuple[str, list[str]]]) -> dict[str, str]:
        """Return topic and type of the recorded topics. graph: topics with their types; those with several types are excluded."""
        there = {topic: types[0] for topic, types in graph if len(types) == 1}
        robots = self._robots(there)
        return {topic: kind for topic, kind in there.items() if self._wants(topic, kind, robots)}

    def _wants(self, topic: str, kind: str, robots: frozenset[str]) -> bool:
        if topic.endswith(f"/{OWN}") or _fits(topic, self.exclude):
            return False
        return _fits(topic, self.topics) or topic in EVERYBODYS or self._factorys(topic, kind, robots)

    def _factorys(self, topic: str, kind: str, robots: frozenset[str]) -> bool:
        if not topic.startswith(f"{self._root}/"):
            return False
        owner, _, leaf = topic.removeprefix(f"{self._root}/").partition("/")
        if kind.startswith(OURS):
            return True
        if owner not in robots or kind in FOR_EYES or (kind in CAMERAS and not self.cameras):
            return False
        return "_action/" not in leaf or TASK.search(leaf) is not None

    def _robots(self, there: Mapping[str, str]) -> frozenset[str]:
        begin, end = f"{self._root}/", "/rfm/status"
        return frozenset(
            topic.removeprefix(begin).removesuffix(end)
            for topic, kind in there.items()
            if kind == ROBOT_STATUS and topic.startswith(begin) and topic.endswith(end)
        )

    @property
    def _root(self) -> str:
        return f"/{self.namespace.strip('/')}" if self.namespace.strip("/") else ""


def _fits(topic: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(topic, pattern) for pattern in patterns)
