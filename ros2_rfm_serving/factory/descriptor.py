"""Factory descriptor: the format of ROSA §3.3, Fig. 3, with additional optional keys.

server_cluster:  {num_servers, gpu_type}; ours: a list of such groups, dispatch, batching, refetch_after_ms,
                 overflow, parity, threads, cores
robot_fleet:     [{task, num_robots}, ...]; ours: network
standby:         ours: servers kept ready, outside the normal routes
planning:        ours: objective and caution of plans
hosts:           ours: the machines, their GPUs, and the processes of each (docs/hosts.md)
discovery:       ours: how processes on several machines discover each other, and how factories are isolated
<task>:          pipeline, task_retry, safety_and_slo_violation, components;
                 ours: value, min_action_rate_hz, execution, percentile, world, robot, image_size_px
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydantic import Field

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.cluster import AUTOMATIC, CONTINUOUS, WAIT, Planning, ServerCluster, Standby
from ros2_rfm_serving.factory.discovery import Discovery
from ros2_rfm_serving.factory.fleet import FleetEntry, NetworkEntry
from ros2_rfm_serving.factory.machines import GpuAssignment, GpuRequest, Machine, assign_gpus
from ros2_rfm_serving.factory.section import Section
from ros2_rfm_serving.factory.task import TaskEntry

CLUSTER, FLEET, STANDBY, PLANNING, HOSTS, DISCOVERY = "server_cluster", "robot_fleet", "standby", "planning", "hosts", "discovery"
"""Sections of the file; every other one is a task."""


class RobotEntry(Section):
    """One robot of the fleet."""

    name: str
    task: str
    index: int
    """Number within its task, from 0."""


class Factory(Section):
    """A validated descriptor."""

    name: str
    file: str
    fingerprint: str = ""
    """SHA-256, hex, of the content of the file, which is equal on all machines of a factory; empty: it was read from no file."""
    server_cluster: tuple[ServerCluster, ...]
    """Groups of equal servers; Fig. 3 has one."""
    standby: Standby = Standby()
    planning: Planning = Planning()
    hosts: dict[str, Machine] = Field(default_factory=dict)
    """Host -> its machine; empty: everything runs on one machine."""
    discovery: Discovery = Discovery()
    robot_fleet: tuple[FleetEntry, ...]
    tasks: dict[str, TaskEntry]

    @property
    def robots(self) -> list[RobotEntry]:
        """Robots, named `<task>_<number from 1>`, in the order of the descriptor."""
        return [
            RobotEntry(name=f"{entry.task}_{index + 1}", task=entry.task, index=index)
            for entry in self.robot_fleet
            for index in range(entry.num_robots)
        ]

    def with_num_robots(self, num_robots: int) -> Factory:
        """Return the same factory with another fleet size, split among the tasks in the same proportion.

        Raises: `ConfigurationError` when there are fewer robots than tasks.
        """
        if num_robots < len(self.robot_fleet):
            problem = f"{num_robots} robots cannot be split among {len(self.robot_fleet)} tasks"
            raise ConfigurationError(problem, file=self.file, key=FLEET, fix=f"ask for at least {len(self.robot_fleet)}")
        total = sum(entry.num_robots for entry in self.robot_fleet)
        shares = [num_robots * entry.num_robots / total for entry in self.robot_fleet]
        counts = [max(1, int(share)) for share in shares]
        while sum(counts) != num_robots:  # the largest remainders are rounded up first; an excess is removed where it is largest
            step = 1 if sum(counts) < num_robots else -1
            at = max((i for i in range(len(counts)) if counts[i] + step >= 1), key=lambda i: step * (shares[i] - counts[i]))
            counts[at] += step
        fleet = tuple(e.model_copy(update={"num_robots": n}) for e, n in zip(self.robot_fleet, counts, strict=True))
        return self.model_copy(update={"robot_fleet": fleet})

    def with_num_servers(self, num_servers: int) -> Factory:
        """Return the same factory with another number of servers in its first group."""
        first, *others = self.server_cluster
        group = first.model_copy(update={"num_servers": num_servers})
        return self.model_copy(update={"server_cluster": (group, *others)})

    def with_dispatch(self, by_type: Mapping[str, str]) -> Factory:
        """Return the same factory with these dispatch policies, by GPU type, in place of `auto`."""
        groups = (
            group.model_copy(update={"dispatch": by_type[group.gpu_type]}) if group.dispatch == AUTOMATIC else group
            for group in self.server_cluster
        )
        return self.model_copy(update={"server_cluster": tuple(groups)})

    def network_of(self, task: str) -> NetworkEntry:
        """Return the network of a task's robots; a default for tasks whose robots only join while the factory runs."""
        return next((entry.network for entry in self.robot_fleet if entry.task == task), NetworkEntry())

    @property
    def servers(self) -> list[str]:
        """Servers, named `server_<number from 1>`, in the order of the descriptor."""
        return list(self.gpu_types)

    @property
    def gpu_types(self) -> dict[str, str]:
        """Server -> its GPU type."""
        return {server: group.gpu_type for server, group in self.groups.items()}

    @property
    def continuous(self) -> frozenset[str]:
        """GPU types whose servers batch continuously."""
        return frozenset(group.gpu_type for group in self.server_cluster if group.batching == CONTINUOUS)

    @property
    def waiting(self) -> frozenset[str]:
        """GPU types whose servers wait for one more request where that is worth it."""
        return frozenset(group.gpu_type for group in self.server_cluster if group.batching == WAIT)

    @property
    def dispatch(self) -> dict[str, str]:
        """GPU type -> dispatch policy of its servers."""
        return {group.gpu_type: group.dispatch for group in self.server_cluster}

    @property
    def groups(self) -> dict[str, ServerCluster]:
        """Server -> the group that declares it."""
        groups = [group for group in self.server_cluster for _ in range(group.num_servers)]
        return {f"server_{i + 1}": group for i, group in enumerate(groups)}

    @property
    def cores(self) -> dict[str, str]:
        """Server -> the processor cores that it is restricted to; empty: any."""
        named = [group.cores_of(i) for group in self.server_cluster for i in range(group.num_servers)]
        return dict(zip(self.groups, named, strict=True))

    @property
    def gpu_assignments(self) -> dict[str, GpuAssignment]:
        """Server -> the host and the GPU that it runs on, without servers that find none."""
        return assign_gpus(self.hosts, {server: GpuRequest(group.gpu_type, group.hosts) for server, group in self.groups.items()})

    @property
    def hosts_of_servers(self) -> dict[str, str]:
        """Server -> its host; empty where all of them have the same."""
        hosts = {server: seat.host for server, seat in self.gpu_assignments.items()} if len(self.hosts) > 1 else {}
        return hosts if len(set(hosts.values())) > 1 else {}

    @property
    def round_trips_s(self) -> dict[str, float]:
        """Server -> round trip to its host with the largest observation; empty where all of them are equally far."""
        found = {server: trip_ms / 1e3 for server, trip_ms in self._trips_ms(self._most_kb).items()}
        return found if len(set(found.values())) > 1 else {}

    @property
    def away_s(self) -> dict[str, float]:
        """Server -> excess of that round trip over the one to the nearest host that serves, without servers that have no excess."""
        return {server: away_ms / 1e3 for server, away_ms in self._away_ms.items()}

    def beyond_s(self, task: str) -> dict[str, float]:
        """Return for each server the excess of a round trip of this task's own observations over the part in `without_away`."""
        trips_ms = self._trips_ms(self.network_of(task).request_kb)
        base_ms = self._base_ms(trips_ms)
        return {server: (trip_ms - base_ms) / 1e3 for server, trip_ms in trips_ms.items()}

    def with_round_trips(self) -> Factory:
        """Return the factory with the longest round trip to a serving host added to the declared one of each task. Measured round
        trips replace the sum."""
        return self._farther(lambda trips_ms: max(trips_ms.values()))

    def without_away(self) -> Factory:
        """Return the factory with a round trip that no server's exceeds by more than its `away_s`, in place of the longest.

        That is the one to the nearest host, and more for a task whose small observations have another nearest host.
        """
        return self._farther(lambda trips_ms: self._base_ms(trips_ms) - max(trips_ms.values()))

    def at_nearest(self) -> Factory:
        """Return the factory with the shortest round trip to a host that serves, in place of the longest."""
        return self._farther(lambda trips_ms: min(trips_ms.values()) - max(trips_ms.values()))

    @property
    def _most_kb(self) -> float:
        return max((entry.network.request_kb for entry in self.robot_fleet), default=0.0)

    @property
    def _away_ms(self) -> dict[str, float]:
        trips_ms = self._trips_ms(self._most_kb)
        nearest_ms = min(trips_ms.values(), default=0.0)
        return {server: trip_ms - nearest_ms for server, trip_ms in trips_ms.items() if trip_ms > nearest_ms}

    def _base_ms(self, trips_ms: Mapping[str, float]) -> float:
        away_ms = self._away_ms
        return max((trip_ms - away_ms.get(server, 0.0) for server, trip_ms in trips_ms.items()), default=0.0)

    def _trips_ms(self, request_kb: float) -> dict[str, float]:
        """Return server -> round trip to its host, with this size of a request and its answer together."""
        seats = self.gpu_assignments if self.hosts else {}
        return {server: self.hosts[seat.host].round_trip_with_ms(request_kb) for server, seat in seats.items()}

    def _farther(self, by_ms: Callable[[Mapping[str, float]], float]) -> Factory:
        """Return the factory with longer round trips. by_ms: increase as a function of the round trips to the servers' hosts."""

        def farther(entry: FleetEntry) -> FleetEntry:
            own, trips_ms = entry.network, self._trips_ms(entry.network.request_kb)
            longer = own.model_copy(update={"round_trip_ms": max(own.round_trip_ms + by_ms(trips_ms), 0.0)})
            return entry.model_copy(update={"network": longer})

        serves = bool(self.hosts and self.gpu_assignments)
        return self.model_copy(update={"robot_fleet": tuple(map(farther, self.robot_fleet))}) if serves else self

    def on_one_machine(self) -> Factory:
        """Return the factory for a start of all processes on one machine, where no robot needs Zenoh."""
        hosts = {name: host.model_copy(update={"zenoh": False}) for name, host in self.hosts.items()}
        return self.model_copy(update={"hosts": hosts})

    @property
    def zenoh_hosts(self) -> tuple[str, ...]:
        """Hosts whose robots use Zenoh."""
        return tuple(name for name, host in self.hosts.items() if host.zenoh)

    @property
    def scheduler_host(self) -> str:
        """Host of the scheduler; empty: there are no hosts."""
        return next((name for name, host in self.hosts.items() if host.scheduler), next(iter(self.hosts), ""))

    def host_of(self, task: str) -> str:
        """Return the host on which the nodes of a task's robots run; empty: there are no hosts."""
        return next((name for name, host in self.hosts.items() if task in host.robots), self.scheduler_host)
