"""Sessions that may send requests: one per robot and component, opened by contract, limited by a quota, and closed when its robot
is gone."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ros2_rfm_serving.dispatch.history import TaskHistory
from ros2_rfm_serving.errors import BadMessageError, CapacityError, ContractError, DrainingError, RfmError, SessionError
from ros2_rfm_serving.server import contract as contracts
from ros2_rfm_serving.server.quota import Quota
from ros2_rfm_serving.types import (
    Conditioning,
    Guidance,
    HorizonRequest,
    ModelContract,
    PipelineConfig,
    RequestId,
    SessionGrant,
    SessionRequest,
    SessionSharing,
)
from ros2_rfm_serving.types.contracts import agreed_conditioning
from ros2_rfm_serving.types.rate_mismatch import rate_mismatch_text
from ros2_rfm_serving.types.state import Kept, check_names, kept, restore, state_of

SessionKey = tuple[str, str]
"""(robot, component)"""
DECLARED_FACTOR = 2.0
"""Ratio of a session's quota to the rate of its schedule: it covers the newer observation that a server may request, and the time
after the rate has fallen."""
LEAST_QUOTA_HZ = 5.0
"""Minimum quota of a session in the schedule: its repeated requests after a loss must not be refused."""
MAX_QUOTAS = 4096
"""Maximum number of remembered quotas, or twice the number of open sessions if that is more; then those of closed sessions are
dropped."""
DECLARED_BURST = 4
"""Requests that a session in the schedule may send at once, or as many as its pipeline has in flight."""


@dataclass(frozen=True, kw_only=True)
class SessionRules:
    """Rules of a server for its sessions."""

    max_request_rate_hz: float = math.inf
    """Maximum mean request rate of one session; requests beyond it are refused before they are decoded."""
    burst: int = 8
    """Requests of one session that may arrive at once."""
    absent_grace_s: float = 10.0
    """Time for which a session stays open after its robot has left the graph."""
    idle_timeout_s: float = math.inf
    """Time without a request after which a session is closed."""
    instruction: str = ""
    """The only instruction that is served; empty: any (Remote-RTC §8.1, pin_task)."""
    strict_rate: bool = False
    """Refuse a control rate that differs from that of the demonstrations; otherwise it is a warning."""


@dataclass
class ServerSession:
    """State of one open session."""

    KEPT: ClassVar[Kept] = kept(
        *("key", "epoch", "conditioning", "guidance", "horizon", "instruction", "slo_s", "pipelining", "num_steps", "history"),
        *("episode", "sequence", "absent_s"),
        num_superseded="superseded",
        num_over_quota="over_quota",
        last_request_s="last_received_s",
    )
    """Everything except the quota, which outlives the session."""

    key: SessionKey
    epoch: int
    conditioning: Conditioning
    guidance: Guidance
    horizon: HorizonRequest
    instruction: str
    """The only instruction; empty: each request has its own."""
    slo_s: float
    """Latency objective; inf: there is none."""
    quota: Quota
    pipelining: PipelineConfig | None = None
    """Terms of pipelining; None: one request of the session runs at a time."""
    num_steps: int = 0
    """Solver steps of each of its chunks; 0: the model's own number."""
    history: TaskHistory = field(default_factory=TaskHistory)
    episode: int = 0
    sequence: int = 0
    """Highest number seen in this episode or an earlier one."""
    superseded: int = 0
    """Number of superseded requests since the last reply."""
    over_quota: int = 0
    """Requests refused as too many."""
    last_received_s: float = math.nan
    """Time of its last request, or of the first check if there was none."""
    absent_s: float = math.inf
    """Time at which its robot was first missing from the graph; inf: it is present."""


@dataclass
class ServerSessions:
    """Open sessions of a server. Epochs rise for the life of the server, so that an old one never matches again."""

    KEPT: ClassVar[Kept] = kept("max_sessions", "next_epoch", is_draining="draining")
    """Everything except the state of each session and its quota; the rules follow from the configuration."""

    contract: ModelContract
    max_sessions: int
    next_epoch: int
    rules: SessionRules = field(default_factory=SessionRules)
    draining: bool = False
    _declared_hz: Mapping[SessionKey, float] = field(default_factory=dict)
    _open: dict[SessionKey, ServerSession] = field(default_factory=dict)
    _quotas: dict[SessionKey, Quota] = field(default_factory=dict)
    _ended: list[ServerSession] = field(default_factory=list)

    def state(self) -> dict[str, Any]:
        """Return the open sessions, quotas and limits, for a snapshot. Sessions that engines may drop are not kept."""
        sessions = [state_of(session, ServerSession.KEPT) for session in self._open.values()]
        quotas = {key: state_of(quota, Quota.KEPT) for key, quota in self._quotas.items()}
        return {**state_of(self, self.KEPT), "open": sessions, "quotas": quotas, "declared_rates_hz": dict(self._declared_hz)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a value of `state`. Raises: `RfmError` for names that are missing or unknown."""
        more = ("open", "quotas", "declared_rates_hz")
        check_names("ServerSessions", {**self.KEPT, **{name: name for name in more}}, state)
        restore(self, self.KEPT, {name: state[name] for name in self.KEPT})
        self._declared_hz = dict(state["declared_rates_hz"])
        self._quotas = {key: _quota_from(quota) for key, quota in state["quotas"].items()}
        self._open = {session.key: session for session in (_session_from(each, self._quotas) for each in state["open"])}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def limit(self) -> int:
        return 1 if self.contract.serving is SessionSharing.EXCLUSIVE else self.max_sessions

    def names(self) -> list[SessionKey]:
        return list(self._open)

    @property
    def over_quota(self) -> dict[str, int]:
        """Return "robot/component" -> requests refused as too many, for sessions that have any."""
        return {"/".join(session.key): session.over_quota for session in self._open.values() if session.over_quota}

    @property
    def are_pipelined(self) -> bool:
        """Return whether any session is pipelined."""
        return any(session.pipelining is not None for session in self._open.values())

    @property
    def pipelined_rows(self) -> int:
        """Return the rows that all pipelined sessions may have in flight together."""
        return sum(each.pipelining.depth for each in self._open.values() if each.pipelining)

    def histories_by_epoch(self) -> dict[int, TaskHistory]:
        return {session.epoch: session.history for session in self._open.values()}

    def histories(self) -> list[TaskHistory]:
        return [session.history for session in self._open.values()]

    def govern(self, rules: SessionRules) -> None:
        """Change the rules; open sessions keep their agreed terms, including the instruction."""
        others = (rules.max_request_rate_hz, rules.burst) != (self.rules.max_request_rate_hz, self.rules.burst)
        self.rules = rules
        for session in self._open.values() if others else ():
            session.quota = self._quota(session.key, session.pipelining)

    def declare(self, rates_hz: Mapping[SessionKey, float]) -> None:
        """Set the request rates of the schedule. Sessions that are not in it may send as often as the rules allow."""
        self._declared_hz = rates_hz
        for session in self._open.values():
            session.quota = self._quota(session.key, session.pipelining)

    def _quota(self, key: SessionKey, pipelining: PipelineConfig | None) -> Quota:
        """Return the quota of a key with the present limits. Its remaining tokens outlive a session: reopening gives no new
        quota."""
        if key not in self._quotas and len(self._quotas) >= max(MAX_QUOTAS, 2 * len(self._open)):
            self._quotas = {key: quota for key, quota in self._quotas.items() if key in self._open}
        limits = self._limits(key, pipelining.depth if pipelining else 1)
        quota = self._quotas.setdefault(key, Quota(*limits))
        quota.become(*limits)
        return quota

    def _limits(self, key: SessionKey, depth: int) -> tuple[float, int]:
        """Return (rate in Hz, burst) of a key. depth: requests that it may have in flight."""
        rules, declared_hz = self.rules, self._declared_hz.get(key, math.inf)
        if declared_hz == math.inf:
            return rules.max_request_rate_hz, max(rules.burst, depth)
        quota_hz = max(DECLARED_FACTOR * declared_hz, LEAST_QUOTA_HZ)
        return min(rules.max_request_rate_hz, quota_hz), max(min(rules.burst, DECLARED_BURST), depth)

    def open(self, request: SessionRequest, load: float, pipelined_rows: int = 0) -> SessionGrant:
        """Open a session; it replaces an open one of the same robot and component, which has restarted or lost its session.

        pipelined_rows: rows that pipelined sessions may have in flight together; 0: batches begin and end together here.

        Raises: `ContractError` for terms on which they cannot agree; `CapacityError` with the `load`; `DrainingError`;
        `BadMessageError` for impossible values.
        """
        contracts.check_values(request)
        if self.draining:
            raise DrainingError("draining: this server takes no new sessions; try another server")
        rules = self.rules
        if found := contracts.differences(self.contract, request, instruction=rules.instruction, strict_rate=rules.strict_rate):
            raise ContractError(found)
        key = (request.robot, request.component)
        if request.pipelining:
            self._check_rows(key, request.pipelining, pipelined_rows)
        if key not in self._open:
            self._check_capacity(key, load)
        else:
            self._ended.append(self._open[key])
        self._open[key] = ServerSession(
            key,
            self.next_epoch,
            agreed_conditioning(request.conditioning, self.contract),
            request.guidance,
            request.horizon,
            rules.instruction or request.instruction,
            request.slo_s or math.inf,
            self._quota(key, request.pipelining),
            request.pipelining,
            request.num_steps,
        )
        self.next_epoch += 1
        warning = rate_mismatch_text(request.control_rate_hz, self.contract.control_rate_hz)
        return SessionGrant(session_epoch=self._open[key].epoch, contract=self.contract, warnings=(warning,) if warning else ())

    def _check_rows(self, key: SessionKey, pipelining: PipelineConfig, rows: int) -> None:
        """Check that rows for a pipelined session are free.
        Raises: `ContractError` if there can never be enough; `CapacityError` while others have them."""
        if not rows:
            problem = "pipelining: this server runs batches that begin and end together"
            raise ContractError([f"{problem}; set `batching: continuous` of its server group, or leave it out"])
        if pipelining.depth > rows:
            problem = f"pipelining: pp_perception + pp_generation is {pipelining.depth}"
            raise ContractError([f"{problem}, this server keeps {rows} rows for pipelined sessions; ask for fewer"])
        taken = sum(each.pipelining.depth for each in self._open.values() if each.pipelining and each.key != key)
        if taken + pipelining.depth > rows:
            raise CapacityError(f"{taken} of {rows} rows are taken by pipelined sessions; try another server")

    def _check_capacity(self, key: SessionKey, load: float) -> None:
        """Check that a session is free; those of scheduled robots are reserved for them. Raises: `CapacityError` if none is
        available."""
        if self.contract.serving is SessionSharing.EXCLUSIVE and self._open:
            robot = next(iter(self._open))[0]
            raise CapacityError(
                f"{self.contract.model} keeps state between chunks and serves one session, {robot}'s; try another server"
            )
        num_kept = len(self._declared_hz.keys() - self._open.keys()) if key not in self._declared_hz else 0
        if len(self._open) + num_kept >= self.max_sessions:
            kept = f", {num_kept} are kept for robots of the schedule" if num_kept else ""
            open_now = f"{len(self._open)} of {self.max_sessions} sessions are open{kept}"
            raise CapacityError(f"{open_now}, the engine is busy {load:.0%} of the time; try another server")

    def close(self, key: SessionKey, epoch: int) -> bool:
        """Close a session; return False if it is not open."""
        if self.get(key, epoch):
            self._ended.append(self._open.pop(key))
            return True
        return False

    def collect(self, absent: Collection[SessionKey], now_s: float) -> list[tuple[SessionKey, str]]:
        """Close unused sessions: idle ones, and those of robots that are `absent` from the graph. Return their keys and the
        reasons."""
        gone = []
        for key, session in self._open.items():
            if math.isnan(session.last_received_s):
                session.last_received_s = now_s
            session.absent_s = min(session.absent_s, now_s) if key in absent else math.inf
            if now_s - session.absent_s >= self.rules.absent_grace_s:
                gone.append((key, "robot_gone"))
            elif now_s - session.last_received_s >= self.rules.idle_timeout_s:
                gone.append((key, "session_idle"))
        self._ended += [self._open.pop(key) for key, _ in gone]
        return gone

    def ended(self) -> list[ServerSession]:
        """Return the sessions that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def reset_episode(self, key: SessionKey, epoch: int, episode: int) -> None:
        """Set the episode of a session, which never falls. Raises: `SessionError` if it is not open."""
        session = self.get(key, epoch)
        if session is None:
            raise SessionError(f"no session of {key[0]}/{key[1]} with epoch {epoch}")
        session.episode = max(session.episode, episode)

    def admit(self, request: RequestId) -> ServerSession:
        """Return the session of a request that may run. Raises: `BadMessageError` with the counter to increment."""
        session = self._open.get((request.robot, request.component))
        if session is None:
            raise BadMessageError("unknown_session", f"{request.robot}/{request.component} has no session here")
        if request.session_epoch == session.epoch and request.episode >= session.episode and request.sequence > session.sequence:
            return session
        name = f"{request.robot}/{request.component}"
        if request.session_epoch != session.epoch:
            raise BadMessageError("stale_epoch", f"{name}: epoch {request.session_epoch}, the session's is {session.epoch}")
        if request.episode < session.episode:
            raise BadMessageError("stale_episode", f"{name}: episode {request.episode}, the session is at {session.episode}")
        raise BadMessageError("stale_sequence", f"{name}: sequence {request.sequence} after {session.sequence}")

    def charge(self, session: ServerSession, now_s: float) -> None:
        """Charge a request to the session's quota. Raises: `BadMessageError` if it exceeds the quota."""
        session.last_received_s = now_s
        if not session.quota.try_acquire(now_s):
            session.over_quota += 1
            name, rate_hz = "/".join(session.key), session.quota.rate_hz
            raise BadMessageError("over_quota", f"{name} asks more than {rate_hz:g} times a second")

    def get(self, key: SessionKey, epoch: int) -> ServerSession | None:
        session = self._open.get(key)
        return session if session and session.epoch == epoch else None


def _quota_from(state: Mapping[str, Any]) -> Quota:
    """Return a quota restored from a snapshot. Raises: `RfmError` for names that are missing or unknown."""
    quota = Quota(math.inf, 1)
    restore(quota, Quota.KEPT, state)
    return quota


def _session_from(state: Mapping[str, Any], quotas: Mapping[SessionKey, Quota]) -> ServerSession:
    """Return a session restored from a snapshot. Raises: `RfmError` for names that are missing or unknown, and for a session
    without a quota."""
    check_names("ServerSession", ServerSession.KEPT, state)
    key = state["key"]
    if key not in quotas:
        raise RfmError(f"the snapshot has a session of {'/'.join(key)}, and no quota of it")
    agreed = (state["conditioning"], state["guidance"], state["horizon"], state["instruction"], state["slo_s"])
    session = ServerSession(key, state["epoch"], *agreed, quotas[key])
    restore(session, ServerSession.KEPT, state)
    return session
