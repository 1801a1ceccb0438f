"""Parts and reported figures of a robot's core."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.client.component_client import ClientState, ModelIdentity
from ros2_rfm_serving.robot.client.request_scheduler import RequestScheduler
from ros2_rfm_serving.robot.config import EpisodeReset, RobotConfig
from ros2_rfm_serving.robot.figures import ComponentFigures
from ros2_rfm_serving.robot.history import ExecutionHistory
from ros2_rfm_serving.robot.motion.command_generator import CommandGenerator
from ros2_rfm_serving.robot.motion.failsafe import Facts, FailSafe
from ros2_rfm_serving.robot.motion.pace import ExecutionPace
from ros2_rfm_serving.robot.motion.smoothness import Smoothness
from ros2_rfm_serving.robot.motion.trajectory import TrajectoryPlanner
from ros2_rfm_serving.robot.task import TaskRun
from ros2_rfm_serving.robot.task_rules import TaskRules
from ros2_rfm_serving.types import NOT_ADMITTED, Conditioning, RobotState, ScheduleFollower, TaskPhase
from ros2_rfm_serving.types.contracts import agreed_conditioning
from ros2_rfm_serving.types.histogram import Histogram
from ros2_rfm_serving.types.state import check_names, kept, restore, state_of

OPEN, EXECUTING = ClientState.OPEN, TaskPhase.EXECUTING
RATES_WINDOW_S = 5.0
"""Window over which actions and chunks per second are counted."""


class RobotParts:
    """State and figures of a robot's core; `RobotCore` adds its behaviour."""

    KEPT: ClassVar = kept(
        *("refused", "schedule_follower", "admission", "episode", "paused", "plan", "history", "figures"),
        num_held_periods="held_ticks",
        motion="_motion",
        trajectory="_planner",
        held_periods="_holds",
        task_rules="_task_rules",
        client="_client",
        failsafe="_failsafe",
        needs_chunk_since_s="_needs_chunk_since_s",
        has_chunk_of_session="_served",
        has_had_session="_connected",
        has_new_session="_opened",
        model="_model",
        has_chunk_since_stop="_had_chunk",
        pending_resets="_resets",
        hold_reason="_holds_for",
        executed_at_s="_executed",
        merged_at_s="_merged",
    )
    """Everything except the task, which has a state of its own while there is one."""

    def __init__(self, config: RobotConfig) -> None:
        """Build the parts of the core. Raises: `ConfigurationError` when limits or fallback ladder do not fit the robot."""
        self.config = config
        self.refused: Counter[str] = Counter()
        self.schedule_follower = ScheduleFollower()
        self.admission = NOT_ADMITTED
        self.episode = 0
        self.task: TaskRun | None = None
        self.paused = False
        self.plan: tuple[str, ...] = ()
        """Remaining subgoals of the newest plan. The first one, or else the task's instruction, is System 1's."""
        self.history = ExecutionHistory()
        """History of the task, for the components that plan and judge."""
        self.held_ticks = 0
        self.figures: defaultdict[str, ComponentFigures] = defaultdict(ComponentFigures)
        """Response statistics of each component that has answered, or has been late."""
        self._motion = CommandGenerator(config, self.refused)
        self._queue = self._motion.queue
        self._planner = TrajectoryPlanner(config) if config.trajectory_horizon_s else None
        self._holds = ExecutionPace(1.0 / config.control_rate_hz)
        """Pace at which control periods without an action are counted."""
        self._task_rules = TaskRules(config.policy)
        self._client = RequestScheduler(config, self._motion, self._task_rules, self.refused)
        self._clients = self._client.clients
        self._failsafe = FailSafe(config.failsafe)
        self._needs_chunk_since_s = math.inf
        self._served = False
        """True when a chunk came in the current or last session of System 1."""
        self._connected = False
        self._opened = False
        """True when a session opened since the last tick. The adapter then ticks at once: a later tick would not show the state
        that follows, because a task may have begun."""
        self._model: ModelIdentity | None = None
        """Model whose actions are queued."""
        self._had_chunk = False
        """True when a chunk came in this attempt since the last stop; from then on an asynchronous robot needs actions."""
        self._resets: tuple[EpisodeReset, ...] = ()
        self._holds_for = ""
        """Short reason why the last tick began no action."""
        self._executed: deque[float] = deque()
        self._merged: deque[float] = deque()
        """Times of the newest actions and chunks, within `RATES_WINDOW_S` before the newest."""

    # --- snapshots ---

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the core as plain values, for `RobotCore.from_state`. It shares no mutable part with the core."""
        task = None if self.task is None else state_of(self.task, TaskRun.KEPT)
        return {**state_of(self, self.KEPT), "task": task}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a snapshot of a core with the same configuration.

        Raises: `RfmError` for names that are missing or unknown, with the part that they belong to.
        """
        check_names("RobotBrain", {**self.KEPT, "task": "task"}, state)
        restore(self, self.KEPT, {name: value for name, value in state.items() if name != "task"})
        self.task = None if state["task"] is None else TaskRun.from_state(state["task"])

    def prepared(self, config: RobotConfig) -> Callable[[], None]:
        """Return a function that applies another configuration from the next tick on. Only fields that may change while a robot
        works may differ: its name, actions, rate, cameras and everything else that sessions have agreed upon stay, as do the task
        and the queue.

        Raises: `ConfigurationError` when it does not fit the robot or its current position; then nothing has changed.
        """
        if config.horizon != self.config.horizon and config.horizon.policy:
            problem = f"servers were told it with the policy {config.horizon.policy!r} when the session opened"
            raise ConfigurationError(problem, key="execution_horizon", fix="deactivate the robot and clean it up first")
        move = self._motion.prepared(config)

        def apply() -> None:
            self.config = config
            move()
            if self._planner is not None:
                self._planner.reconfigure(config)
            self._client.reconfigure(config)
            self._task_rules.reconfigure(config.policy)
            self._failsafe.reconfigure(config.failsafe)

        return apply

    def _facts(self) -> Facts:
        """Return the facts that determine the fail-safe state."""
        link, talk = self._clients.system1, self._client
        failing_s = math.inf
        if link is not None and link.unanswered_s < math.inf:
            failing_s = link.unanswered_s + (link.slo_s if link.slo_s < math.inf else 0.0)
        return Facts(
            link is not None and link.route is not None,
            "" if link is not None and link.state is OPEN else (link.problem if link else "no schedule yet"),
            self._clients.mismatch,
            self.executing and not self.paused,
            self._connected,
            self._served,
            self._needs_chunk_since_s,
            self._stalls_after_s(),
            failing_s,
            self._motion.validator.units or talk.timing.too_slow,
            talk.no_request,
        )

    @property
    def _awaits_operator(self) -> bool:
        """Return whether the robot stands until an operator decides how to continue."""
        return self.paused or self._task_rules.needs_operator

    def _stalls_after_s(self) -> float:
        """Return how long a robot may normally be without an action, while its first chunk, or one to wait for, is computed."""
        return 0.0 if self._had_chunk and not self._client.timing.waits_for_chunk else self.config.failsafe.degraded_after_s

    # --- figures ---

    @property
    def state(self) -> RobotState:
        """Return the fail-safe state of the last tick."""
        return self._failsafe.state

    @property
    def reason(self) -> str:
        """Return why the robot is not STREAMING."""
        return self._failsafe.reason

    @property
    def mismatch(self) -> str:
        """Return how a server's model differs from the one that the robot has worked with; empty: it does not."""
        return self._clients.mismatch

    @property
    def conditioning(self) -> Conditioning | None:
        """Return the conditioning of System 1's session; None: there is no session, or the robot is synchronous."""
        link = self._clients.system1
        if link is None or link.contract is None or self.config.synchronous:
            return None
        return agreed_conditioning(self.config.conditioning, link.contract)

    @property
    def refusals(self) -> dict[str, str]:
        """Return component -> reason why its server does not serve it."""
        return {link.component: link.refusal for link in self._clients.all if link.refusal}

    @property
    def state_changes(self) -> Counter[tuple[RobotState, RobotState]]:
        return self._failsafe.changes

    @property
    def stop_reason(self) -> str:
        """Return why the task is STOPPED or WAITING; empty: it is not."""
        return self._task_rules.stopped if self.task is not None else ""

    @property
    def validator_warnings(self) -> Counter[str]:
        """Return check -> number of chunks that were executed although this check of the gate failed."""
        return self._motion.validator_warnings

    @property
    def violations(self) -> Counter[str]:
        return self._task_rules.violations

    @property
    def retries(self) -> int:
        return self.task.attempt if self.task else 0

    @property
    def executing(self) -> bool:
        task = self.task
        return task is not None and task.phase is EXECUTING

    @property
    def staleness_s(self) -> float:
        return self._motion.staleness_s

    @property
    def oldest_staleness_s(self) -> float:
        """Return the age of the observation that the chunk of the last executed action began with."""
        return self._motion.oldest_staleness_s

    @property
    def stalenesses(self) -> Histogram:
        """Return the staleness of every executed action, s."""
        return self._motion.stalenesses

    @property
    def horizons(self) -> Histogram:
        """Return the horizons of all chunks with a server's horizon, s, less what was executed meanwhile."""
        return self._motion.horizons

    @property
    def fallbacks(self) -> Counter[str]:
        """Return how often each motion of the fallback ladder was begun."""
        return Counter({motion.value: count for motion, count in self._motion.ladder.entered.items()})

    @property
    def smoothness(self) -> Smoothness:
        """Return the smoothness of this episode."""
        return self._motion.smoothness

    @property
    def queue_depth(self) -> int:
        return self._queue.depth

    @property
    def subgoal(self) -> str:
        """Return the current subgoal; empty: there is no plan."""
        return self.plan[0] if self.plan else ""

    @property
    def instruction(self) -> str:
        """Return the instruction of System 1."""
        return self.subgoal or (self.task.goal.instruction if self.task else "")

    @property
    def system1_server(self) -> str:
        """Return the server in use, which may be the standby."""
        link = self._clients.system1
        return link.server if link else ""

    @property
    def ready_servers(self) -> list[str]:
        """Return the servers that report that they are ready and are not lost."""
        return sorted(self._clients.servers.ready)

    @property
    def failovers(self) -> int:
        return self._clients.failovers

    @property
    def sessions(self) -> list[tuple[str, str, int]]:
        """Return (server, component, epoch) of each open session."""
        return [(link.server, link.component, link.epoch) for link in self._clients.all if link.state is OPEN]

    @property
    def round_trips_s(self) -> list[float]:
        link = self._clients.system1
        return link.latencies.values_s() if link else []

    def slo_s(self, component: str) -> float:
        """Return the SLO of a component; infinite: it has none."""
        link = self._clients.get(component)
        return link.slo_s if link else math.inf

    def rates(self, now_s: float) -> tuple[float, float]:
        """Return (actions executed, chunks merged) per second over the last `RATES_WINDOW_S`, without a change of state."""
        since_s = now_s - RATES_WINDOW_S
        executed, merged = (sum(at_s >= since_s for at_s in times) for times in (self._executed, self._merged))
        return executed / RATES_WINDOW_S, merged / RATES_WINDOW_S

    def _note_time(self, times: deque[float], now_s: float) -> None:
        times.append(now_s)
        while times[0] < now_s - RATES_WINDOW_S:
            times.popleft()
