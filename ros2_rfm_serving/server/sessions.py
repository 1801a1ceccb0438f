"""Who may send requests: one session per robot and component, its contract checked when it opens (Remote-RTC §8.4)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ros2_rfm_serving.errors import BadMessageError, CapacityError, ContractError, SessionError
from ros2_rfm_serving.types import Conditioning, Guidance, ModelContract, RequestId, SessionGrant, SessionRequest

SessionKey = tuple[str, str]
"""(robot, component)"""


@dataclass
class Session:
    key: SessionKey
    epoch: int
    conditioning: Conditioning
    guidance: Guidance
    episode: int = 0
    sequence: int = 0
    """Highest seen in this episode or an earlier one."""
    superseded: int = 0
    """Since the last reply."""


class Sessions:
    """Opens, closes and checks sessions. Epochs rise for the life of the server, so an old one never matches again."""

    def __init__(self, contract: ModelContract, max_sessions: int, first_epoch: int) -> None:
        self.contract, self.max_sessions = contract, max_sessions
        self._next_epoch = first_epoch
        self._open: dict[SessionKey, Session] = {}

    def __len__(self) -> int:
        return len(self._open)

    def names(self) -> list[SessionKey]:
        return list(self._open)

    def open(self, request: SessionRequest) -> SessionGrant:
        """A second open by the same robot and component replaces the first (it has restarted, or lost its way).

        Raises: `ContractError`, `CapacityError`; `BadMessageError` when guidance has impossible values.
        """
        _check_guidance(request.guidance)
        if differences := contract_differences(self.contract, request):
            raise ContractError(differences)
        key = (request.robot, request.component)
        if key not in self._open and len(self._open) >= self.max_sessions:
            raise CapacityError(f"{len(self._open)} of {self.max_sessions} sessions are open; try another server")
        self._open[key] = Session(key, self._next_epoch, request.conditioning, request.guidance)
        self._next_epoch += 1
        return SessionGrant(session_epoch=self._open[key].epoch, contract=self.contract, warnings=_warnings(self.contract, request))

    def close(self, key: SessionKey, epoch: int) -> bool:
        """False when that session is not open (any more)."""
        if key in self._open and self._open[key].epoch == epoch:
            del self._open[key]
            return True
        return False

    def reset_episode(self, key: SessionKey, epoch: int, episode: int) -> None:
        """Raises: `SessionError`."""
        session = self._open.get(key)
        if session is None or session.epoch != epoch:
            raise SessionError(f"no session of {key[0]}/{key[1]} with epoch {epoch}")
        session.episode = max(session.episode, episode)

    def admit(self, request: RequestId) -> Session:
        """The session of a request that may run. Raises: `BadMessageError` with the counter to raise."""
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

    def get(self, key: SessionKey, epoch: int) -> Session | None:
        session = self._open.get(key)
        return session if session and session.epoch == epoch else None


def contract_differences(contract: ModelContract, request: SessionRequest) -> list[str]:
    """What keeps this robot from using this model, in words; empty: nothing."""
    pairs = [
        ("schema version", request.schema_version, contract.schema_version),
        ("cameras", tuple(sorted(request.cameras)), tuple(sorted(contract.cameras))),
        ("state size", request.state_size, contract.state_size),
        ("action names and order", request.action_names, contract.action_names),
    ]
    if request.expected_model_hash:
        pairs.append(("model hash", request.expected_model_hash, contract.model_hash))
    differences = [f"{what}: the robot has {robot!r}, the model {model!r}" for what, robot, model in pairs if robot != model]
    if request.conditioning not in contract.conditionings:
        able = ", ".join(repr(conditioning.value) for conditioning in contract.conditionings)
        differences.append(f"conditioning: the robot asks for {request.conditioning.value!r}, the model can do {able}")
    return differences


def delay_envelope_steps(contract: ModelContract, conditioning: Conditioning) -> int:
    """Longest inference delay that leaves something to execute and that the model knows how to bridge."""
    if conditioning is Conditioning.PREFIX:
        return contract.max_inference_delay_steps
    return max(contract.chunk_length - 1, 0)


def _check_guidance(guidance: Guidance) -> None:
    """Raises: `BadMessageError`."""
    if not (math.isfinite(guidance.max_weight) and guidance.max_weight > 0):
        raise BadMessageError("bad_session", f"guidance_max_weight is {guidance.max_weight:g}; it must be finite and above 0")
    if guidance.execution_horizon < 1:
        raise BadMessageError("bad_session", f"guidance_horizon is {guidance.execution_horizon}; it must be at least 1")


def _warnings(contract: ModelContract, request: SessionRequest) -> tuple[str, ...]:
    robot, model = request.control_rate_hz, contract.control_rate_hz
    if robot and model and abs(robot / model - 1) > 0.05:
        return (f"the robot runs at {robot:g} Hz, the demonstrations ran at {model:g} Hz",)
    return ()
