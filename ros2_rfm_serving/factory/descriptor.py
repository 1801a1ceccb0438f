"""The factory descriptor: ROSA §3.3, Fig. 3, as it is printed, plus optional keys of ours.

server_cluster:  {num_servers, gpu_type}; ours: a list of such groups, dispatch, batching, refetch_after_ms, overflow, parity
robot_fleet:     [{task, num_robots}, ...]; ours: network
standby:         ours: servers kept warm, outside the normal routes
planning:        ours: how cautious a plan is
hosts:           ours: the machines, their GPUs, and what runs where (docs/hosts.md)
discovery:       ours: how processes on several machines find each other, and which factories do not
<task>:          pipeline, task_retry, safety_and_slo_violation, components;
                 ours: value, min_action_rate_hz, execution, percentile, world, robot, image_size_px
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.discovery import Discovery
from ros2_rfm_serving.factory.hosts import MOST_NETWORK_MS, MOST_OBSERVATION_KB, Host, Seat, Wish, seats
from ros2_rfm_serving.factory.section import Section
from ros2_rfm_serving.types import MAX_ALPHA, MAX_STAGES, MONITOR, SAFETY, SYSTEM1, SYSTEM2, Fallback, contracts

COMPONENTS = (SYSTEM1, SYSTEM2, SAFETY, MONITOR)
LAST_RESORTS = (Fallback.STOP_AND_CALL_HUMAN, Fallback.RETURN_TO_SAFE_STATE)
"""What may follow when retries or patience are used up: a person looks after it, or the task ends where it is safe."""
CONTINUOUS = "continuous"
CONTROL_RATE_HZ = 20.0
"""Of a robot that does not say."""
IMAGE_SIZE_PX = (640, 480)
"""Width and height of what a real robot's cameras send unless it is declared: the most that its node lets through by default."""
SIMULATED_IMAGE_SIZE_PX = (96, 96)
"""Of a simulated robot, unless it is declared."""
SLO_MARGIN = 0.0
"""Unless it is declared."""
CLUSTER, FLEET, STANDBY, PLANNING, HOSTS, DISCOVERY = "server_cluster", "robot_fleet", "standby", "planning", "hosts", "discovery"
"""Sections of the file; every other one is a task."""
METAWORLD = "metaworld"
SIMULATORS = "ros2_rfm_serving.worlds"
"""Group of the entry points with which other packages add simulators."""
SIMULATED_TASKS = (
    *("reach", "push", "pick-place", "door-open", "visit-then-push"),
    *("door-close", "drawer-open", "drawer-close", "button-press-topdown", "button-press", "window-open", "window-close"),
    *("faucet-open", "faucet-close", "handle-press", "handle-press-side", "coffee-button"),
)
"""Of Meta-World."""
METAWORLD_ROBOT = "metaworld_arm.yaml"


class Overflow(Section):
    """A server elsewhere that takes what a server of the group cannot answer in time (Kairos §3.2.3). Ours."""

    url: str = Field(pattern=r"^wss?://")
    """Of its door for clients without ROS (docs/gateway.md)."""
    round_trip_ms: float = Field(gt=0)
    batches_in_flight: int = Field(default=2, ge=1, le=8)
    """On their way there or back at once: with one, the server elsewhere idles for a round trip between two batches."""
    token_env: str = ""
    """Environment variable with its token; empty: none."""


class ServerCluster(Section):
    num_servers: int = Field(ge=1, le=10_000)
    dispatch: str = "balanced"
    """Whose request runs next: `balanced`, `best`, `swift`, `fifo`, `least_attained`, `wait_ratio`, `deadline`, or one of one's own
    (docs/server.md says what each is good at). Ours."""
    batching: str = "fixed"
    """How many run together: `fixed`, `saturation` or `wait`; `continuous`: models that can advance one solver step at a time let
    requests join a running batch. Ours."""
    refetch_after_ms: float = Field(default=0.0, ge=0)
    """An observation that would be older when it is used is asked for again if that costs nothing; 0: never. Ours."""
    overflow: Overflow | None = None
    parity: Literal["on_request", "at_start"] = "on_request"
    """`at_start`: each model is held against its reference before it is served, and not served when a block is further off than it
    may be; `on_request`: those alone of which the catalogue says so. Ours."""
    gpu_type: Annotated[str, BeforeValidator(str)] = Field(min_length=1)
    hosts: tuple[str, ...] = ()
    """Machines that its servers may run on; empty: any that has such GPUs. Ours."""

    def __str__(self) -> str:
        return f"{self.num_servers} x {self.gpu_type}" + (" (batching continuously)" if self.batching == CONTINUOUS else "")


class Standby(Section):
    """Servers that take over when another is lost (ROSA §3.4.4). Ours."""

    num_servers: int = Field(default=0, ge=0)
    """Of the cluster's, kept warm with a model loaded and out of the normal routes."""
    peers: bool = True
    """Where no reserved server covers a loss: another one with the same model, if it still meets every SLO."""
    same_host: bool = False
    """Of several `hosts`: a standby may be on the host of the server that it covers, if no other can. That helps when a process
    ends, not when the host is lost."""


class Planning(Section):
    """How cautious a plan is. Ours."""

    slo_margin: float = Field(default=SLO_MARGIN, ge=0, le=0.5)
    """Share of every SLO that no prediction may use up: taken off first, before the network's part. Why none is the default:
    docs/scheduler.md."""
    link_share: float = Field(default=0.9, ge=0.05, le=1)
    """Of a host's `bandwidth_mbit_s`, each way, that no plan asks for more than."""


class Network(Section):
    """Between a group of robots and the servers, there and back. Ours."""

    round_trip_ms: float = Field(default=0.0, ge=0, le=MOST_NETWORK_MS)
    """At best."""
    jitter_ms: float = Field(default=0.0, ge=0, le=MOST_NETWORK_MS)
    """Mean of what is added to it: half of it each way, exponentially distributed."""
    observation_kb: float = Field(default=0.0, ge=0, le=MOST_OBSERVATION_KB)
    """Of each robot, on the wire: what hosts with a `bandwidth_mbit_s` have to take. 0: not known."""
    reply_kb: float = Field(default=0.0, ge=0, le=MOST_OBSERVATION_KB)
    """Of the answer to one, on the wire, the other way. 0: not known."""

    @property
    def request_kb(self) -> float:
        """There and back."""
        return self.observation_kb + self.reply_kb

    @property
    def mean_s(self) -> float:
        return (self.round_trip_ms + self.jitter_ms) / 1e3

    def at_s(self, percentile: float) -> float:
        """A round trip at a percentile. The sum of two exponential delays of mean j/2 exceeds x j/2 with (1 + x) e^-x."""
        late, low, high = 1.0 - percentile / 100.0, 0.0, 100.0
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (middle, high) if (1 + middle) * math.exp(-middle) > late else (low, middle)
        return (self.round_trip_ms + high * self.jitter_ms / 2) / 1e3


class FleetEntry(Section):
    task: str
    num_robots: int = Field(ge=1, le=100_000)
    network: Network = Network()
    """What an SLO, which is from request to reply, has to leave room for."""


class Pipeline(Section):
    action_period_ms: float = Field(gt=0)
    """Execution time of what one System 1 prediction commands, t_act (ROSA §3.4.2)."""
    system2_to_system1_call_ratio: float = Field(default=0.0, ge=0, le=1)
    """System 2 calls per System 1 call, 1/H; 0: no System 2."""


class TaskRetry(Section):
    max_task_retries: int = Field(default=3, ge=0)
    on_max_task_retries: Fallback = Fallback.STOP_AND_CALL_HUMAN


class SafetyAndSloViolation(Section):
    max_consecutive_safety_replan: int = Field(default=10, ge=1)
    max_consecutive_slo_violation: int = Field(default=3, ge=1)
    on_max_violation: Fallback = Fallback.STOP_AND_CALL_HUMAN


class Component(Section):
    model: str = Field(min_length=1)
    engine: str = ""
    """Which of the model's entries in the catalogue: `<model>@<engine>`; empty: `<model>`. Ours."""
    prompt: str = ""
    slo_ms: float | None = Field(default=None, gt=0)
    """Request to reply at the SLO percentile; None: no requirement."""
    freq_hz: float | None = Field(default=None, gt=0, le=1000)
    """Of periodic components (obligations); None for System 1 and 2."""
    call_ratio: float | None = Field(default=None, gt=0, le=100)
    """Calls per System 1 call, of a goal-coupled component beyond the four of Fig. 3 (those have theirs in `pipeline`)."""
    percentile: float | None = Field(default=None, ge=50, le=99)
    """Of `slo_ms`; None: the task's."""
    fallback: Fallback = Fallback.STOP_AND_RESEND

    @model_validator(mode="before")
    @classmethod
    def _engine_is_part_of_the_model(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("engine") and "@" not in str(data.get("model", "@")):
            return {**data, "model": f"{data['model']}@{data['engine']}"}
        return data


class ExecutionMode(enum.Enum):
    SYNC = "sync"
    """Request, execute, request: a cycle lasts inference and execution (ROSA §3.4.1)."""
    ASYNC = "async"
    """Inference during execution: a cycle lasts the longer of the two."""


class Horizon(Section):
    policy: str = "static"
    """`static`: the robot's own; else the server says: by `confidence` (Kairos §3.1), `curvature`, or a policy of one's own."""
    threshold: float = Field(default=0.4, gt=-1)
    """How unsure of an action a model may be (docs/server.md)."""
    min_steps: int = Field(default=1, ge=1)
    """H_min: never fewer actions."""
    mean_period_ms: float | None = Field(default=None, gt=0)
    """Mean execution time of what a policy really has executed of a chunk; None: `pipeline.action_period_ms`."""

    @model_validator(mode="after")
    def _static_has_no_mean(self) -> Horizon:
        if self.policy == "static" and self.mean_period_ms is not None:
            raise ValueError("mean_period_ms needs a policy: without one `pipeline.action_period_ms` of every chunk is executed")
        return self


class Pipelining(Section):
    """Several requests of a robot in flight, one per action period, on one public context (AURAS §4). Ours."""

    pp_perception: int = Field(default=1, ge=1, le=MAX_STAGES)
    """Action periods until an observation is in the public context (§4.3.2)."""
    pp_generation: int = Field(default=1, ge=1, le=MAX_STAGES)
    """Action periods that the solver steps of one request are spread over."""
    alpha: float = Field(default=0.0, ge=-MAX_ALPHA, le=MAX_ALPHA)
    """Skew of that spread: stage i has a share of e^(i alpha)."""
    fetch_offset: Literal[0, -1] = 0
    """0: on the context of this action period's observation; -1: on the one before (§4.3.1)."""


class Execution(Section):
    mode: ExecutionMode = ExecutionMode.SYNC
    horizon: Horizon = Horizon()
    pipelining: Pipelining | None = None
    """None: one request of a robot in flight."""
    num_steps: int | None = Field(default=None, ge=1, le=1000)
    """Solver steps of each of System 1's chunks, as far as its model lets robots choose (docs/engines.md); None: its own number.
    Plans and virtual time reckon with the model's own number: fewer are sooner done than planned, more later. Ours."""

    @model_validator(mode="after")
    def _pipelined_robots_do_not_wait(self) -> Execution:
        if self.pipelining is not None and self.mode is ExecutionMode.SYNC:
            raise ValueError("pipelining needs `mode: async`: a robot that waits for each answer has one request in flight")
        return self


class ActionRateFloor(Section):
    """F_c^min of ROSA eq. 1, said explicitly."""

    per_robot: float | None = Field(default=None, gt=0)
    per_class: float | None = Field(default=None, gt=0)
    """Of all robots of the task together."""

    @model_validator(mode="after")
    def _one_of_them(self) -> ActionRateFloor:
        if (self.per_robot is None) == (self.per_class is None):
            raise ValueError("give one of `per_robot` and `per_class`")
        return self


class Interface(enum.Enum):
    """How a simulated robot shows itself on the graph."""

    NATIVE = "native"
    """As the robot node expects it by default: compressed images, the state as an array."""
    FOREIGN = "foreign"
    """With names, types and an order of its own, as somebody else's robot; `Task.robot` maps it."""


class World(Section):
    """A simulated robot that `rfm up` starts with the task's robots. Ours; without it, real robots are expected."""

    simulator: Annotated[str, Field(min_length=1)]
    """`metaworld`, an entry point of other packages, or `package.module:function` (`worlds/registry.py`)."""
    task: str
    control_rate_hz: float = Field(default=CONTROL_RATE_HZ, ge=0.1, le=1000)
    camera_rate_hz: float = Field(default=5.0, ge=0.01, le=200)
    seed: int = Field(default=0, ge=0, le=1_000_000_000)
    """Robot i of the task starts its episodes at seed + 10 000 i."""
    interface: Interface = Interface.NATIVE


Pixels = Annotated[int, Field(ge=8, le=2048)]


class Task(Section):
    pipeline: Pipeline
    task_retry: TaskRetry = TaskRetry()
    safety_and_slo_violation: SafetyAndSloViolation = SafetyAndSloViolation()
    components: dict[str, Component] = Field(min_length=1)
    value: float = Field(default=1.0, gt=0)
    """Weight v_c of one action of this task (ROSA §3.4.1, eq. 1)."""
    min_action_rate_hz: Annotated[float, Field(gt=0)] | ActionRateFloor | None = None
    """Floor of the action rate. A plain number is per robot; `{per_class: ...}` is of all its robots together."""
    execution: Execution = Execution()
    percentile: float = Field(default=99.0, ge=50, le=99)
    """Of every `slo_ms` of the task."""
    world: World | None = None
    robot: str = METAWORLD_ROBOT
    """ROS parameters of the robot node: in config/robots, or a path relative to the descriptor, which it may not contradict."""
    image_size_px: tuple[Pixels, Pixels] | None = None
    """Width and height of the images that its robots send; None: 640 x 480, of simulated robots 96 x 96. Ours."""

    @property
    def pipelining(self) -> contracts.Pipelining | None:
        """As a session asks for it."""
        asked = self.execution.pipelining
        return None if asked is None else contracts.Pipelining(**asked.model_dump())

    @property
    def cycle_period_s(self) -> float:
        """Execution time of what is executed of one System 1 prediction, t_act (ROSA §3.4.2)."""
        return (self.execution.horizon.mean_period_ms or self.pipeline.action_period_ms) / 1e3

    @property
    def image_size(self) -> tuple[int, int]:
        """Width and height of the images that its robots send."""
        return self.image_size_px or (SIMULATED_IMAGE_SIZE_PX if self.world else IMAGE_SIZE_PX)

    def calls_per_action(self, component: str) -> float:
        """Of a goal-coupled component: 1 for System 1, 1/H for System 2 (ROSA §3.4.2); 0 for a periodic one."""
        if component == SYSTEM1:
            return 1.0
        if component == SYSTEM2:
            return self.pipeline.system2_to_system1_call_ratio
        return self.components[component].call_ratio or 0.0

    def floor_hz(self, num_robots: int) -> float:
        """Lowest action rate of one of `num_robots`, F_c^min / K_c; 0: none."""
        floor = self.min_action_rate_hz
        if isinstance(floor, ActionRateFloor):
            return floor.per_robot if floor.per_robot is not None else self.class_floor_hz / max(num_robots, 1)
        return floor or 0.0

    @property
    def class_floor_hz(self) -> float:
        """Lowest action rate of all robots together, F_c^min; 0: none, or one of each robot."""
        floor = self.min_action_rate_hz
        return floor.per_class or 0.0 if isinstance(floor, ActionRateFloor) else 0.0


class Robot(Section):
    """One robot of the fleet."""

    name: str
    task: str
    index: int
    """Within its task, from 0."""


class Factory(Section):
    """A validated descriptor."""

    name: str
    file: str
    fingerprint: str = ""
    """SHA-256, hex, of what the file says: two machines of a factory have the same one. Empty: it was read from no file."""
    server_cluster: tuple[ServerCluster, ...]
    """Groups of equal servers; Fig. 3 has one."""
    standby: Standby = Standby()
    planning: Planning = Planning()
    hosts: dict[str, Host] = Field(default_factory=dict)
    """Empty: it is all on one machine."""
    discovery: Discovery = Discovery()
    robot_fleet: tuple[FleetEntry, ...]
    tasks: dict[str, Task]

    @property
    def robots(self) -> list[Robot]:
        """Named `<task>_<number from 1>`, in the order of the descriptor."""
        return [
            Robot(name=f"{entry.task}_{index + 1}", task=entry.task, index=index)
            for entry in self.robot_fleet
            for index in range(entry.num_robots)
        ]

    def with_num_robots(self, num_robots: int) -> Factory:
        """The same factory with another fleet size, split among the tasks in the same proportion.

        Raises: `ConfigurationError` when there are fewer robots than tasks.
        """
        if num_robots < len(self.robot_fleet):
            problem = f"{num_robots} robots cannot be split among {len(self.robot_fleet)} tasks"
            raise ConfigurationError(problem, file=self.file, key=FLEET, fix=f"ask for at least {len(self.robot_fleet)}")
        total = sum(entry.num_robots for entry in self.robot_fleet)
        shares = [num_robots * entry.num_robots / total for entry in self.robot_fleet]
        counts = [max(1, int(share)) for share in shares]
        while sum(counts) != num_robots:  # the largest remainders get what is left; what is over goes where it is most over
            step = 1 if sum(counts) < num_robots else -1
            at = max((i for i in range(len(counts)) if counts[i] + step >= 1), key=lambda i: step * (shares[i] - counts[i]))
            counts[at] += step
        fleet = tuple(e.model_copy(update={"num_robots": n}) for e, n in zip(self.robot_fleet, counts, strict=True))
        return self.model_copy(update={"robot_fleet": fleet})

    def with_num_servers(self, num_servers: int) -> Factory:
        """The same factory with another number of servers in its first group."""
        first, *others = self.server_cluster
        group = first.model_copy(update={"num_servers": num_servers})
        return self.model_copy(update={"server_cluster": (group, *others)})

    def network_of(self, task: str) -> Network:
        """Of the robots of a task; none is declared for those that only ever come while the factory runs."""
        return next((entry.network for entry in self.robot_fleet if entry.task == task), Network())

    @property
    def servers(self) -> list[str]:
        """Named `server_<number from 1>`, in the order of the descriptor."""
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
    def dispatch(self) -> dict[str, str]:
        """GPU type -> the order in which its servers take those who wait; of groups that differ, the first one's."""
        return {group.gpu_type: group.dispatch for group in reversed(self.server_cluster)}

    @property
    def groups(self) -> dict[str, ServerCluster]:
        """Server -> the group that declares it."""
        groups = [group for group in self.server_cluster for _ in range(group.num_servers)]
        return {f"server_{i + 1}": group for i, group in enumerate(groups)}

    @property
    def seats(self) -> dict[str, Seat]:
        """Server -> the host and the GPU that it runs on; of those that find none, nothing."""
        return seats(self.hosts, {server: Wish(group.gpu_type, group.hosts) for server, group in self.groups.items()})

    @property
    def hosts_of_servers(self) -> dict[str, str]:
        """Server -> its host; empty where all of them have the same."""
        hosts = {server: seat.host for server, seat in self.seats.items()} if len(self.hosts) > 1 else {}
        return hosts if len(set(hosts.values())) > 1 else {}

    @property
    def round_trips_s(self) -> dict[str, float]:
        """Server -> round trip to its host, of the largest observation; empty where all of them are equally far."""
        found = {server: trip_ms / 1e3 for server, trip_ms in self._trips_ms(self._most_kb).items()}
        return found if len(set(found.values())) > 1 else {}

    @property
    def away_s(self) -> dict[str, float]:
        """Server -> how much longer that is than to the nearest host that serves; without those."""
        return {server: away_ms / 1e3 for server, away_ms in self._away_ms.items()}

    def beyond_s(self, task: str) -> dict[str, float]:
        """Server -> how much longer a round trip of this task's own observations is than what `without_away` leaves of it."""
        trips_ms = self._trips_ms(self.network_of(task).request_kb)
        base_ms = self._base_ms(trips_ms)
        return {server: (trip_ms - base_ms) / 1e3 for server, trip_ms in trips_ms.items()}

    def with_round_trips(self) -> Factory:
        """With the longest round trip to a host that serves, added to what each task declares. Measured ones replace the sum."""
        return self._farther(lambda trips_ms: max(trips_ms.values()))

    def without_away(self) -> Factory:
        """With what no server's round trip exceeds by more than its `away_s`, in place of the longest: to the nearest host, and
        more for a task whose small observations have another nearest one."""
        return self._farther(lambda trips_ms: self._base_ms(trips_ms) - max(trips_ms.values()))

    def at_nearest(self) -> Factory:
        """With the shortest round trip to a host that serves, in place of the longest."""
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
        """Server -> round trip to its host, with so much in a request and in its answer."""
        seats = self.seats if self.hosts else {}
        return {server: self.hosts[seat.host].round_trip_with_ms(request_kb) for server, seat in seats.items()}

    def _farther(self, by_ms: Callable[[Mapping[str, float]], float]) -> Factory:
        """by_ms: of the round trips to servers' hosts."""

        def farther(entry: FleetEntry) -> FleetEntry:
            own, trips_ms = entry.network, self._trips_ms(entry.network.request_kb)
            longer = own.model_copy(update={"round_trip_ms": max(own.round_trip_ms + by_ms(trips_ms), 0.0)})
            return entry.model_copy(update={"network": longer})

        serves = bool(self.hosts and self.seats)
        return self.model_copy(update={"robot_fleet": tuple(map(farther, self.robot_fleet))}) if serves else self

    def on_one_machine(self) -> Factory:
        """Where all of it is started together: nobody needs Zenoh to reach anybody."""
        hosts = {name: host.model_copy(update={"zenoh": False}) for name, host in self.hosts.items()}
        return self.model_copy(update={"hosts": hosts})

    @property
    def zenoh_hosts(self) -> tuple[str, ...]:
        """Whose robots are on Zenoh."""
        return tuple(name for name, host in self.hosts.items() if host.zenoh)

    @property
    def scheduler_host(self) -> str:
        """Empty: there are no hosts."""
        return next((name for name, host in self.hosts.items() if host.scheduler), next(iter(self.hosts), ""))

    def host_of(self, task: str) -> str:
        """Where the nodes of its robots run; empty: there are no hosts."""
        return next((name for name, host in self.hosts.items() if task in host.robots), self.scheduler_host)
