"""Whoever asks shows who it is: what a process with a certificate demands of those who ask it, and how they do it."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from ros2_rfm_serving.errors import ConfigurationError, UnprovenError
from ros2_rfm_serving.ros.wire.proofs import fields_of, proof_from, proof_to
from ros2_rfm_serving.security.own import ENCLAVE, enclave_of_environment, enclave_of_member
from ros2_rfm_serving.security.proof import PUBLIC_KEY_BYTES, Challenges, Proof, Verifies, Who, text_of

if TYPE_CHECKING:
    from ros2_rfm_serving.security.signing import Asking, Prover, Verifier


GENUINE_S = 1.0
"""For the answer of whom is asked, after somebody else's."""
MOST_SIGNED = 4
"""Proofs of one request: the first challenge may be over when its proof arrives, and so may the next on a busy machine."""
ENDLESS = "{asked} has told another challenge after each of {times} proofs: somebody else may be answering in its name"
SCHEDULER = "scheduler"
"""Whoever admits and releases robots, when asked."""


class Proven(NamedTuple):
    who: Who
    proof: Proof
    text: bytes


class Doorkeeper:
    """Of one process. All its methods are for the executor's thread."""

    def __init__(self, asked: str, verifier: Verifies) -> None:
        """asked: the server's name, or whoever else is asked."""
        self._asked, self._challenges, self.verifier = asked, Challenges(), verifier

    @staticmethod
    def of_process(asked: str) -> Doorkeeper | None:
        """None: it has no certificate, and demands none. Raises: `ConfigurationError`."""
        verifier = verifier_of_process()
        return Doorkeeper(asked, verifier) if verifier else None

    def challenge(self, now_s: float) -> bytes:
        return self._challenges.current(now_s)

    def check(self, request: Any, now_s: float) -> Proven:
        """Who asks this, which is asked once. Raises: `UnprovenError`."""
        proof = proof_from(request.proof)
        self._challenges.check(proof, now_s)
        text = text_of(self._asked, fields_of(request), proof)
        who = self.verifier.check(proof, text)
        self._challenges.take(proof)
        return Proven(who, proof, text)


def prover_of_process(otherwise: Path | None = None) -> Prover | None:
    """otherwise: whose it is where the environment names none. None: it has no certificate. Raises: `ConfigurationError`."""
    enclave = enclave_of_process() or otherwise
    return None if enclave is None else _prover(enclave)


def prover_of_member(member: str) -> Prover | None:
    """Return what signs in the name of a member of this process, such as one of its robots: with the member's own enclave, where
    that lies beside the one of the process, and with the one of the process otherwise.

    None: the process has no certificate. Raises: `ConfigurationError`.
    """
    own = enclave_of_process()
    return None if own is None else _prover(enclave_of_member(own, member))


def verifier_of_process(otherwise: Path | None = None) -> Verifier | None:
    """As `prover_of_process`. Raises: `ConfigurationError`."""
    enclave = enclave_of_process() or otherwise
    if enclave is None:
        return None
    from ros2_rfm_serving.security.signing import Verifier

    return Verifier(enclave)


def sign(prover: Prover, request: Any, asked: str, challenge: bytes) -> Asking:
    """Puts the proof into a request. Raises: `ConfigurationError`."""
    asking = prover.sign(asked, challenge, fields_of(request))
    request.proof = proof_to(asking.proof)
    return asking


def sign_answer(prover: Prover, asked: Any, to: str, answer: Any, public_key: bytes = b"") -> None:
    """Puts the proof into an answer, of which nothing may change any more, where whoever asks gives a key for it. asked: the
    request; to: who asks; public_key: the other half of a session's keys. Raises: `ConfigurationError`."""
    proof = proof_from(asked.proof)
    if len(proof.public_key) == PUBLIC_KEY_BYTES:
        answer.proof = proof_to(prover.answer(proof, to, public_key, fields_of(answer)))


def digest_of(request: Any) -> str:
    """To whom an order is answered: who has asked with this proof, and with no other, of which it may be a copy in part."""
    return hashlib.sha256(msgpack.packb(list(proof_from(request.proof)))).hexdigest()


def sign_ordered(prover: Prover | None, request: Any, answer: Any) -> None:
    """Puts the proof into the answer to an order."""
    if prover is not None:
        with contextlib.suppress(ConfigurationError):  # `/diagnostics` says it
            sign_answer(prover, request, digest_of(request), answer)


def who_answered(asking: Asking, verifier: Verifies, by: str, to: str, answer: Any) -> Who:
    """Raises: `UnprovenError` for an answer that is not that server's."""
    return asking.answered(by, to, fields_of(answer), proof_from(answer.proof), verifier)


def check_answer(asked: bytes, verifier: Verifies, by: str, to: str, answer: Any) -> None:
    """asked: the public key of whoever asked. Raises: `UnprovenError` for an answer that is not theirs who were asked."""
    from ros2_rfm_serving.security.signing import answered

    answered(asked, by, to, fields_of(answer), proof_from(answer.proof), verifier)


def screen(future: Any, is_answer: Callable[[Any], bool]) -> None:
    """Of a call that has just been made: an answer that is none is passed over. Whoever is on the domain can give one, and be the
    first to."""
    take = future.set_result

    def set_result(answer: Any) -> None:
        if not future.done() and is_answer(answer):
            take(answer)

    future.set_result = set_result


def is_signed_anew(prover: Prover | None, request: Any, asked: str, answer: Any) -> bool:
    """A request was refused for want of a proof, which it has now: ask again. Raises: `ConfigurationError`."""
    challenge = bytes(getattr(answer, "challenge", b""))
    if prover is None or not challenge:
        return False
    sign(prover, request, asked, challenge)
    return True


class Signing:
    """Of one request: it is signed for the challenge that was told, and anew where another has followed meanwhile, but not for
    ever: whoever tells a new one every time is not who was asked."""

    def __init__(self, prover: Prover | None, asked: str, verifier: Verifies | None = None) -> None:
        """verifier: of the answers; None: whoever answers is believed."""
        self._prover, self._asked, self._verifier, self._signed = prover, asked, verifier, 0

    def call(self, client: Any, request: Any, later: Callable[[float, Callable[[], object]], object] | None = None) -> Any:
        """Asks; the future is of the answer of whom is asked. later: calls something so many seconds later, where they may have no
        certificate: then anybody's counts, if theirs has not come meanwhile."""
        if self._verifier is None:
            return client.call_async(request)
        if not len(request.proof.certificate):
            request.proof.public_key = secrets.token_bytes(PUBLIC_KEY_BYTES)
        asked, to, verifier = bytes(request.proof.public_key), digest_of(request), self._verifier
        future = client.call_async(request)
        take = future.set_result

        def is_answer(answer: Any) -> bool:
            try:
                check_answer(asked, verifier, self._asked, to, answer)
            except UnprovenError:
                if later:
                    later(GENUINE_S, lambda: future.done() or take(answer))
                return False
            return True

        screen(future, is_answer)
        return future

    def is_anew(self, request: Any, answer: Any) -> bool:
        """As `is_signed_anew`. Raises: `ConfigurationError`; `UnprovenError`: it has been asked often enough."""
        if not is_signed_anew(self._prover, request, self._asked, answer):
            return False
        self._signed += 1
        if self._signed > MOST_SIGNED:
            raise UnprovenError(ENDLESS.format(asked=self._asked, times=MOST_SIGNED))
        return True


def _prover(enclave: Path) -> Prover:
    from ros2_rfm_serving.security.signing import Prover

    return Prover(enclave)


def enclave_of_process() -> Path | None:
    """Raises: `ConfigurationError` where nothing can be made of it."""
    enclave = enclave_of_environment()
    if enclave is None:
        return None
    try:
        import cryptography  # noqa: F401
    except ImportError:
        fix = "pip install 'ros2-rfm-serving[security]'"
        raise ConfigurationError("cryptography is not installed", key=ENCLAVE, fix=fix) from None
    return enclave
