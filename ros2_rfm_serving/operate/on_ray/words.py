"""Messages between `rfm up` and its driver process. The module does not use Ray."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ros2_rfm_serving.operate.on_ray.errand import Errand
from ros2_rfm_serving.operate.on_ray.planning import ClusterNode, Layout


class Join(NamedTuple):
    """First order, answered with `Joined` or `Refused`."""

    address: str
    layout: Layout


class Look(NamedTuple):
    """Request for the present nodes, answered with `Joined`."""


class Begin(NamedTuple):
    """Order to start the actors, answered with `Told` repeatedly."""

    errands: tuple[Errand, ...]
    logs: Path
    again: bool = False
    """Actors of an earlier cluster may still run, and have the names."""


class Recall(NamedTuple):
    """Request whether the head knows this driver, answered with `Recalled`; a lost head does not answer."""


class End(NamedTuple):
    """Order to end everything in order, answered with `Ended`."""


class Joined(NamedTuple):
    address: str
    own: str
    """Address of this machine, as the cluster sees it."""
    nodes: tuple[ClusterNode, ...]
    """Nodes that are alive."""


class Refused(NamedTuple):
    """Content of a `ConfigurationError`."""

    problem: str
    key: str
    fix: str


class Recalled(NamedTuple):
    is_known: bool


class Told(NamedTuple):
    events: tuple[str, ...]
    gave_up: Mapping[str, int | None]
    """Nodes that Ray does not keep any more -> last exit code."""


class Ended(NamedTuple):
    killed: tuple[str, ...]
    """Nodes that did not end in order."""


Order = Look | Begin | Recall | End
Answer = Joined | Refused | Recalled | Told | Ended
