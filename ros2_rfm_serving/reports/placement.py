"""Figures that tables and charts derive from a solution: alike servers, their limits, the allocation of GPUs."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.factory.task import COMPONENTS
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler.solution import ServerSolution, Solution


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one server, by its profile."""

    max_rate_hz: float
    """Highest measured rate."""
    slo_s: float
    """Tightest SLO of its streams, less the network's share and the margin; inf: there is none."""
    capacity_hz: float
    """Highest load within every SLO, each at its own percentile."""


def limits_of(server: ServerSolution, solution: Solution, profile: Profile) -> Limits:
    """Return the limits of a server. Models that share a GPU in time slices each have that part of its capacity."""
    slices = sum(gpu_of(other) == gpu_of(server) for other in solution.servers)
    key = (server.model, server.gpu_type, server.batching, server.batch_size)
    slo_s = min((stream.server_slo_s for stream in server.streams), default=math.inf)
    capacities_hz = (profile.capacity_hz(*key, s.server_slo_s / slices, s.percentile) for s in server.streams)
    return Limits(
        max_rate_hz=profile.max_rate_hz(*key) / slices,
        slo_s=slo_s,
        capacity_hz=min(capacities_hz, default=profile.max_rate_hz(*key)) / slices,
    )


def gpu_of(server: ServerSolution) -> str:
    return server.gpu or server.server


def alike(servers: Iterable[ServerSolution]) -> list[list[ServerSolution]]:
    """Return groups of servers with the same set-up and the same kinds of streams, in the order of their first members."""
    groups: dict[tuple[object, ...], list[ServerSolution]] = defaultdict(list)
    for s in servers:
        kinds = frozenset((stream.task, stream.component) for stream in s.streams)
        groups[s.gpu_type, s.model, s.batching, s.batch_size, s.standby, bool(s.gpu), kinds].append(s)
    return list(groups.values())


def names(servers: Iterable[str]) -> str:
    """Return a short form: ["server_1", "server_2", "server_3", "server_7"] -> server_1-3,7."""
    numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
    for name in dict.fromkeys(servers):
        parts = re.fullmatch(r"(\D*)(\d+)(.*)", name)
        assert parts, "servers are numbered (factory/descriptor.py)"
        numbers[parts[1], parts[3]].append(int(parts[2]))
    return ", ".join(f"{prefix}{_ranges(sorted(found))}{suffix}" for (prefix, suffix), found in numbers.items())


def _ranges(numbers: Sequence[int]) -> str:
    starts = [numbers[0], *(b for a, b in pairwise(numbers) if b != a + 1)]
    ends = [*(a for a, b in pairwise(numbers) if b != a + 1), numbers[-1]]
    return ",".join(f"{a}-{b}" if a < b else f"{a}" for a, b in zip(starts, ends, strict=True))


def components_of(factory: Factory) -> list[str]:
    """Return the components of the tasks that have robots: ROSA's four in the order of its Table 3, then the others."""
    declared = dict.fromkeys(name for entry in factory.robot_fleet for name in factory.tasks[entry.task].components)
    return sorted(declared, key=lambda name: COMPONENTS.index(name) if name in COMPONENTS else len(COMPONENTS))


def allocation(solution: Solution, components: Sequence[str]) -> str:
    """Return the number of GPUs of each component, such as 5:1:1:1 (ROSA Table 3); GPUs that serve several components follow."""
    serves: dict[str, set[str]] = defaultdict(set)
    for server in solution.servers:
        serves[gpu_of(server)] |= {stream.component for stream in server.streams}
    counts = Counter(tuple(c for c in components if c in found) for found in serves.values())
    alone = ":".join(str(counts.pop((component,), 0)) for component in components)
    idle = counts.pop((), 0)
    shared = "".join(f" + {count} of {'+'.join(found)}" for found, count in counts.items())
    return alone + shared + (f" + {idle} idle" if idle else "")
