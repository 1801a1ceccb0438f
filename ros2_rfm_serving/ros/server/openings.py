"""Owners of sessions: on a server with a certificate, only the robot that has opened a session can use it.

Neither DDS nor Zenoh inspects messages, and all robots of a server write to its one observation topic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from ros2_rfm_serving.errors import BadMessageError, ConfigurationError, UnprovenError
from ros2_rfm_serving.ros.node.doorkeeper import Doorkeeper, Proven, prover_of_process, sign_answer
from ros2_rfm_serving.ros.wire.proofs import is_call_sealed, is_observation_sealed
from ros2_rfm_serving.security.proof import Keys, Who
from ros2_rfm_serving.server.sessions import SessionKey
from ros2_rfm_serving.types import RequestId

if TYPE_CHECKING:
    from ros2_rfm_serving.security.signing import Prover


class _Opened(NamedTuple):
    epoch: int
    keys: Keys
    who: Who


class Openings:
    """Session owners and their keys. All methods but `reply_key` are for the executor's thread."""

    def __init__(self, doorkeeper: Doorkeeper, prover: Prover) -> None:
        self._doorkeeper, self._prover = doorkeeper, prover
        self._opened: dict[SessionKey, _Opened] = {}
        self._former: dict[SessionKey, _Opened] = {}
        """Previous or just ended sessions, whose keys authenticate messages that are still in flight."""

    @staticmethod
    def of_process(server: str) -> Openings | None:
        """Return the session owners; None: the process has no certificate, and demands no signature.
        Raises: `ConfigurationError`."""
        doorkeeper, prover = Doorkeeper.of_process(server), prover_of_process()
        return Openings(doorkeeper, prover) if doorkeeper and prover else None

    def challenge(self, now_s: float) -> bytes:
        return self._doorkeeper.challenge(now_s)

    def check(self, request: Any, now_s: float) -> Proven:
        """Verify a request to open a session. Raises: `UnprovenError`."""
        proven = self._doorkeeper.check(request, now_s)
        if proven.who.name != request.robot:
            raise UnprovenError(f"{proven.who.name} asks in the name of {request.robot[:100]!r}")
        return proven

    def answer(self, proven: Proven) -> tuple[bytes, Keys]:
        """Return (the public key from which the robot derives the session's keys, these keys). Raises: `UnprovenError`."""
        return self._doorkeeper.verifier.answer(proven.proof, proven.text)

    def sign(self, to: str, request: Any, answer: Any) -> None:
        """Sign a reply that opens no session, and must not change afterwards. to: name of the caller."""
        with contextlib.suppress(ConfigurationError):  # `/diagnostics` reports it
            sign_answer(self._prover, request, to, answer)

    def opened(self, proven: Proven, public_key: bytes, keys: Keys, request: Any, answer: Any) -> None:
        """Sign the reply, which must not change afterwards, and register the session. Raises: `ConfigurationError`."""
        sign_answer(self._prover, request, request.robot, answer, public_key)
        key = request.robot, request.component
        if key in self._opened:
            self._former[key] = self._opened[key]
        self._opened[key] = _Opened(answer.session_epoch, keys, proven.who)

    def reply_key(self, request: RequestId) -> bytes | None:
        """Return the key of a session's replies; None: the session ended long ago. It may be called on any thread."""
        opened = self._find(self._opened, request) or self._find(self._former, request)
        return opened.keys.answers if opened else None

    def check_observation(self, request: RequestId, data: bytes) -> None:
        """Raise `BadMessageError` unless the observation is from the owner of its session."""
        opened = self._find(self._opened, request)
        if opened is not None and is_observation_sealed(data, opened.keys.asks):
            return
        former = self._find(self._former, request)
        if former is not None and is_observation_sealed(data, former.keys.asks):
            raise BadMessageError("stale_epoch", f"{request.robot}/{request.component}: of a session that another has followed")
        problem = "an observation that whoever opened the session did not send"
        raise BadMessageError("unproven", f"{request.robot}/{request.component}: {problem}")

    def check_call(self, request: Any, open_now: Collection[SessionKey]) -> None:
        """Check a call that closes a session or begins an episode in it. Raises: `UnprovenError` for a session that is open and
        belongs to another robot. A former epoch has nothing left to change."""
        key = request.robot, request.component
        opened = self._opened.get(key)
        is_former = opened is not None and opened.epoch != request.session_epoch
        if key in open_now and not is_former and not (opened and is_call_sealed(request, opened.keys.asks)):
            raise UnprovenError(f"this session of {request.robot}/{request.component} is not of whoever asks")

    def keep(self, open_now: Collection[SessionKey]) -> list[tuple[SessionKey, int]]:
        """Forget sessions that have ended, one call later.
        Return the sessions (and epochs) to be closed, because their certificate is no longer valid."""
        ended = {key: opened for key, opened in self._opened.items() if key not in open_now}
        self._former = {key: opened for key, opened in self._former.items() if key in open_now} | ended
        self._opened = {key: opened for key, opened in self._opened.items() if key in open_now}
        is_good = self._doorkeeper.verifier.is_good
        return [(key, opened.epoch) for key, opened in self._opened.items() if not is_good(opened.who)]

    @staticmethod
    def _find(among: dict[SessionKey, _Opened], request: RequestId) -> _Opened | None:
        opened = among.get((request.robot, request.component))
        return opened if opened is not None and opened.epoch == request.session_epoch else None
