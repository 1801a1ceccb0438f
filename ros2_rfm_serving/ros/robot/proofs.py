"""Robots of this process show servers who they are, seal what they say in the sessions that follow, and hear nobody else there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ros2_rfm_serving.errors import BadMessageError, UnprovenError
from ros2_rfm_serving.ros.node.doorkeeper import keys_of, prover_of_process, sign, verifier_of_process
from ros2_rfm_serving.ros.wire.proofs import is_sealed_by, seal_call, sealed_observation
from ros2_rfm_serving.security.proof import Keys, Verifies, Who

if TYPE_CHECKING:
    from ros2_rfm_serving.security.signing import Asking

_Session = tuple[str, str, str, int]
"""Server, robot, component and epoch: answers may overtake each other, and a session that was given up is closed."""


class _Opened(NamedTuple):
    keys: Keys
    who: Who


class Proofs:
    """With the certificate of the process: it opens no session with a server that does not show its own. Without one everything
    stays as it is."""

    def __init__(self) -> None:
        """Raises: `ConfigurationError`."""
        self._prover, self._verifier = prover_of_process(), verifier_of_process()
        self._challenges: dict[str, bytes] = {}
        """Of each server, as told last."""
        self._opened: dict[_Session, _Opened] = {}

    @property
    def verifier(self) -> Verifies | None:
        """None: there is no certificate."""
        return self._verifier

    def hear(self, server: str, challenge: Any) -> None:
        """Twice a second. Whose certificate is good no more is not heard any longer."""
        if not self._verifier:
            return
        self._challenges[server] = bytes(challenge)
        is_good = self._verifier.is_good
        for session in [key for key, opened in self._opened.items() if key[0] == server and not is_good(opened.who)]:
            del self._opened[session]

    def sign(self, server: str, request: Any) -> Asking | None:
        """Of a session to be opened. None: there is no certificate. Raises: `ConfigurationError`, `UnprovenError`."""
        if not self._prover:
            return None
        challenge = self._challenges.get(server)
        if not challenge:
            raise UnprovenError(f"{server} shows no certificate, or has not been heard yet")
        return sign(self._prover, request, server, challenge)

    def opened(self, server: str, request: Any, asking: Asking | None, answer: Any) -> None:
        """Raises: `UnprovenError` for an answer that is not that server's, or leaves us without keys."""
        if asking is not None and self._verifier:
            who, keys = keys_of(asking, self._verifier, server, request.robot, answer)
            self._opened[server, request.robot, request.component, answer.session_epoch] = _Opened(keys, who)

    def ended(self, server: str, robot: str, component: str, epoch: int) -> None:
        """Nothing more is said in that session."""
        self._opened.pop((server, robot, component, epoch), None)

    def sealed(self, server: str, observation: Any) -> Any:
        """To be published: the message, or its bytes with their seal."""
        opened = self._opened.get(_session_of(server, observation.id))
        return sealed_observation(observation, opened.keys.asks) if opened else observation

    def seal(self, server: str, request: Any) -> Any:
        """Of a call that belongs to a session."""
        if opened := self._opened.get(_session_of(server, request)):
            seal_call(request, opened.keys.asks)
        return request

    def check(self, reply: Any, data: memoryview) -> None:
        """data: of the reply. Raises: `BadMessageError` for what the server of that session has not said."""
        if not self._verifier:
            return
        server, identity = reply.header.frame_id, reply.id
        opened = self._opened.get(_session_of(server, identity))
        if opened is None:
            problem = f"{identity.robot}/{identity.component} has no session {identity.session_epoch} with {server!r}"
            raise BadMessageError("stale_epoch", problem)
        if not is_sealed_by(opened.keys.answers, data):
            raise BadMessageError("unproven", f"an answer to {identity.robot}/{identity.component} that {server} has not sent")


def _session_of(server: str, named: Any) -> _Session:
    return server, named.robot, named.component, named.session_epoch
