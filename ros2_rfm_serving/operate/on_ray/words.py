"""What `rfm up` and its process that speaks with Ray say to each other. Nothing here knows of Ray."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ros2_rfm_serving.operate.on_ray.errand import Errand
from ros2_rfm_serving.operate.on_ray.planning import ClusterNode, Layout


class Join(NamedTuple):
    """The first order, answered with `Joined` or `Refused`."""

    address: str
    layout: Layout


class Look(NamedTuple):
    """At the nodes that are there now; answered with `Joined`."""


class Begin(NamedTuple):
    """Answered with `Told`, again and again."""

    errands: tuple[Errand, ...]
    logs: Path
    again: bool = False
    """What an earlier cluster kept may still run, and have the names."""


class Recall(NamedTuple):
    """Does the head know of this driver? Answered with `Recalled`; by a head that is lost, not at all."""


class End(NamedTuple):
    """All of it, in order; answered with `Ended`."""


class Joined(NamedTuple):
    address: str
    own: str
    """Address of this machine, as the cluster sees it."""
    nodes: tuple[ClusterNode, ...]
    """Those that live now."""


class Refused(NamedTuple):
    """As of a `ConfigurationError`."""

    problem: str
    key: str
    fix: str


class Recalled(NamedTuple):
    is_known: bool


class Told(NamedTuple):
    events: tuple[str, ...]
    gave_up: Mapping[str, int | None]
    """Whom Ray does not keep any more, with its last exit code."""


class Ended(NamedTuple):
    killed: tuple[str, ...]
    """That did not end in order."""


Order = Look | Begin | Recall | End
Answer = Joined | Refused | Recalled | Told | Ended
