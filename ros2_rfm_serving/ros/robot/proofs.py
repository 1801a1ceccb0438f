"""Authentication between the robots of this process and servers: signed session requests, sealed messages, verified replies."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from ros2_rfm_serving.errors import BadMessageError, SessionError, UnprovenError
from ros2_rfm_serving.ros.node.doorkeeper import prover_of_member, prover_of_process, sign, verifier_of_process, who_answered
from ros2_rfm_serving.ros.node.said import Hearer
from ros2_rfm_serving.ros.node.scheduled import ScheduleHearer
from ros2_rfm_serving.ros.robot.vouched import Vouched
from ros2_rfm_serving.ros.wire.proofs import is_sealed_by, seal_call, sealed_observation
from ros2_rfm_serving.security.proof import Keys, Verifies, Who
from ros2_rfm_serving.types import ServerState

if TYPE_CHECKING:
    from ros2_rfm_serving.security.signing import Asking, Prover

_Session = tuple[str, str, str, int]
"""Server, robot, component and epoch: replies may overtake each other, and a session that was given up is closed."""


MOST_CHALLENGES = 4


class Word(NamedTuple):
    """Verification result of a server's status."""

    counts: bool
    vouches: bool = False
    """The status vouches for a scheduler for which none has vouched lately."""


class _Opened(NamedTuple):
    keys: Keys
    who: Who


class Proofs:
    """Certificates and session keys of the robots of one process. With a certificate, of each robot or of the process, it opens
    no session with a server that does not show its own. Without one nothing is signed or verified."""

    def __init__(self) -> None:
        """Load the certificates. Raises: `ConfigurationError`."""
        self._verifier = verifier_of_process()
        self._provers: dict[str, Prover | None] = {}
        """Robot -> its signer: robots that share this process may each have an enclave of their own."""
        self._hearer, self._vouched = Hearer(self._verifier), Vouched()
        self.check_schedule = ScheduleHearer(self._verifier).check
        """Verifier of schedules, for `bounded.hear`."""
        self._challenges: dict[str, OrderedDict[bytes, int]] = {}
        """Server -> its last challenges, each with its process."""
        self._opened: dict[_Session, _Opened] = {}

    @property
    def verifier(self) -> Verifies | None:
        """Verifier; None: there is no certificate."""
        return self._verifier

    def check_status(self, server: str, status: Any, data: memoryview) -> None:
        """Verify a server's status; for `bounded.hear`. Raises: `BadMessageError`."""
        self._hearer.check_own(server, status, data)

    def takes(self, schedule: Any, now_s: float) -> bool:
        """Return whether the schedule's scheduler is known to be alive, or none is.
        A refused one counts once a server vouches for it."""
        return not self._verifier or self._vouched.takes(schedule.scheduler, schedule.hears, now_s)

    def is_in_doubt(self, now_s: float) -> bool:
        """Return whether no server vouches for any scheduler, for example because a robot has no session."""
        return self._verifier is not None and not self._vouched.has_vouched(now_s)

    def hear(self, server: str, status: Any, now_s: float) -> Word:
        """Process a status, twice a second; sessions whose certificate is no longer valid are dropped."""
        if not self._verifier:
            return Word(counts=True)
        is_good = self._verifier.is_good
        for session in [key for key, opened in self._opened.items() if key[0] == server and not is_good(opened.who)]:
            del self._opened[session]
        vouched, process = self._vouched, status.process
        lives = vouched.lives(server, process, now_s)
        if not lives and not vouched.may_live(server, now_s):
            return Word(counts=False)
        told, challenge = self._challenges.setdefault(server, OrderedDict()), bytes(status.challenge)
        told[challenge] = process
        told.move_to_end(challenge)
        if len(told) > MOST_CHALLENGES:
            told.popitem(last=False)
        if not lives:  # somebody may have recorded that it ends or drains
            return Word(counts=status.state in (ServerState.READY, ServerState.LOADING))
        return Word(counts=True, vouches=vouched.follows(server, process, status.scheduler, now_s))

    def sign(self, server: str, request: Any) -> Asking | None:
        """Sign a request to open a session; None: there is no certificate. Raises: `ConfigurationError`, `UnprovenError`."""
        if (prover := self._prover_of(request.robot)) is None:
            return None
        challenge = next(reversed(self._challenges.get(server, ())), b"")
        if not challenge:
            raise UnprovenError(f"{server} shows no certificate, or has not been heard yet")
        return sign(prover, request, server, challenge)

    def answered(self, server: str, request: Any, asking: Asking | None, answer: Any) -> None:
        """Verify the reply to a request for a session, and keep the session's keys.
        Raises: `UnprovenError` for a reply that is not that server's, or yields no keys."""
        if asking is None or self._verifier is None:
            return
        who = who_answered(asking, self._verifier, server, request.robot, answer)
        if answer.success:
            keys = asking.keys(bytes(answer.proof.public_key))
            self._opened[server, request.robot, request.component, answer.session_epoch] = _Opened(keys, who)
            told = self._challenges.get(server)
            if told and (process := told.get(asking.proof.challenge)):
                self._vouched.opened(server, process)

    def ask(self, server: str, status: Any, request: Any) -> Asking | None:
        """Sign a query whether the process of this status is alive. None: it or this process has no certificate.
        Raises: `ConfigurationError`."""
        challenge, prover = bytes(status.challenge), self._prover_of(request.robot)
        return sign(prover, request, server, challenge) if prover and challenge else None

    def is_alive(self, server: str, process: int, request: Any, asking: Asking, answer: Any) -> bool:
        """Return whether the reply to `ask` shows that the process is alive: it has checked the signature of its own challenge."""
        if self._verifier is None or answer.error_code != SessionError.code:
            return False
        try:
            who_answered(asking, self._verifier, server, request.robot, answer)
        except UnprovenError:
            return False
        self._vouched.opened(server, process)
        return True

    def _prover_of(self, robot: str) -> Prover | None:
        """Return the signer for a robot; None where this process had no certificate when it began. Raises: `ConfigurationError`."""
        if self._verifier is None:
            return None
        if robot not in self._provers:
            self._provers[robot] = prover_of_member(robot) if robot else prover_of_process()
        return self._provers[robot]

    def ended(self, server: str, robot: str, component: str, epoch: int) -> None:
        """Forget the keys of a session that has ended."""
        self._opened.pop((server, robot, component, epoch), None)

    def sealed(self, server: str, observation: Any) -> Any:
        """Return the observation for publication, or its sealed bytes."""
        opened = self._opened.get(_session_of(server, observation.id))
        return sealed_observation(observation, opened.keys.asks) if opened else observation

    def seal(self, server: str, request: Any) -> Any:
        """Seal a call that belongs to a session, and return it."""
        if opened := self._opened.get(_session_of(server, request)):
            seal_call(request, opened.keys.asks)
        return request

    def check(self, reply: Any, data: memoryview) -> None:
        """Verify a reply. data: bytes of the reply. Raises: `BadMessageError` when it is not from the server of that session."""
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
