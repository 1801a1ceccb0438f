"""Whoever asks shows who it is: what a process with a certificate demands of those who ask it, and how they do it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ros2_rfm_serving.errors import ConfigurationError, UnprovenError
from ros2_rfm_serving.ros.wire.proofs import fields_of, proof_from, proof_to
from ros2_rfm_serving.security.own import ENCLAVE, enclave_of_environment
from ros2_rfm_serving.security.proof import Challenges, Keys, Proof, Verifies, Who, text_of

if TYPE_CHECKING:
    from ros2_rfm_serving.security.signing import Asking, Prover, Verifier


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
    if enclave is None:
        return None
    from ros2_rfm_serving.security.signing import Prover

    return Prover(enclave)


def verifier_of_process() -> Verifier | None:
    """None: it has no certificate. Raises: `ConfigurationError`."""
    enclave = enclave_of_process()
    if enclave is None:
        return None
    from ros2_rfm_serving.security.signing import Verifier

    return Verifier(enclave)


def sign(prover: Prover, request: Any, asked: str, challenge: bytes) -> Asking:
    """Puts the proof into a request. Raises: `ConfigurationError`."""
    asking = prover.sign(asked, challenge, fields_of(request))
    request.proof = proof_to(asking.proof)
    return asking


def sign_answer(prover: Prover, proven: Proven, public_key: bytes, answer: Any) -> None:
    """Puts the proof into an answer, of which nothing may change any more. Raises: `ConfigurationError`."""
    answer.proof = proof_to(prover.answer(proven.proof, proven.who.name, public_key, fields_of(answer)))


def keys_of(asking: Asking, verifier: Verifies, by: str, to: str, answer: Any) -> tuple[Who, Keys]:
    """Who has answered, and the session's keys. Raises: `UnprovenError`."""
    return asking.answered(by, to, fields_of(answer), proof_from(answer.proof), verifier)


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

    def __init__(self, prover: Prover | None, asked: str) -> None:
        self._prover, self._asked, self._signed = prover, asked, 0

    def is_anew(self, request: Any, answer: Any) -> bool:
        """As `is_signed_anew`. Raises: `ConfigurationError`; `UnprovenError`: it has been asked often enough."""
        if not is_signed_anew(self._prover, request, self._asked, answer):
            return False
        self._signed += 1
        if self._signed > MOST_SIGNED:
            raise UnprovenError(ENDLESS.format(asked=self._asked, times=MOST_SIGNED))
        return True


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
