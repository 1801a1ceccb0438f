"""Challenge-response authentication of service callers, for both sides."""

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
"""Time for the authentic reply to arrive after one that is not."""
MOST_SIGNED = 4
"""Maximum number of signatures for one request: on a busy machine a challenge may expire before its signature arrives."""
ENDLESS = "{asked} has told another challenge after each of {times} proofs: somebody else may be answering in its name"
SCHEDULER = "scheduler"
"""Name of the process that admits and releases robots."""


class Proven(NamedTuple):
    who: Who
    proof: Proof
    text: bytes


class Doorkeeper:
    """Authenticator of the requests to one process. Its methods are for the executor's thread."""

    def __init__(self, asked: str, verifier: Verifies) -> None:
        """Create the authenticator. asked: name of the server, or of another process that is called."""
        self._asked, self._challenges, self.verifier = asked, Challenges(), verifier

    @staticmethod
    def of_process(asked: str) -> Doorkeeper | None:
        """Return the authenticator; None: the process has no certificate and demands none. Raises: `ConfigurationError`."""
        verifier = verifier_of_process()
        return Doorkeeper(asked, verifier) if verifier else None

    def challenge(self, now_s: float) -> bytes:
        return self._challenges.current(now_s)

    def check(self, request: Any, now_s: float) -> Proven:
        """Verify a request, which is accepted once, and return its sender. Raises: `UnprovenError`."""
        proof = proof_from(request.proof)
        self._challenges.check(proof, now_s)
        text = text_of(self._asked, fields_of(request), proof)
        who = self.verifier.check(proof, text)
        self._challenges.take(proof)
        return Proven(who, proof, text)


def prover_of_process(otherwise: Path | None = None) -> Prover | None:
    """Return the signer of this process, or None when it has no certificate.
    otherwise: enclave to use when the environment names none. Raises: `ConfigurationError`."""
    enclave = enclave_of_process() or otherwise
    return None if enclave is None else _prover(enclave)


def prover_of_member(member: str) -> Prover | None:
    """Return the signer for a member of this process, such as one of its robots; None: the process has no certificate.

    It uses the member's own enclave where that lies beside the process' enclave, and the process' enclave otherwise.
    Raises: `ConfigurationError`."""
    own = enclave_of_process()
    return None if own is None else _prover(enclave_of_member(own, member))


def verifier_of_process(otherwise: Path | None = None) -> Verifier | None:
    """Return the verifier of this process, as `prover_of_process`. Raises: `ConfigurationError`."""
    enclave = enclave_of_process() or otherwise
    if enclave is None:
        return None
    from ros2_rfm_serving.security.signing import Verifier

    return Verifier(enclave)


def sign(prover: Prover, request: Any, asked: str, challenge: bytes) -> Asking:
    """Put the signature into a request. Raises: `ConfigurationError`."""
    asking = prover.sign(asked, challenge, fields_of(request))
    request.proof = proof_to(asking.proof)
    return asking


def sign_answer(prover: Prover, asked: Any, to: str, answer: Any, public_key: bytes = b"") -> None:
    """Put the signature into a reply, which must not change afterwards; only if the request has a key for it.
    asked: the request. to: name of the caller. public_key: the server's half of a session's keys. Raises: `ConfigurationError`."""
    proof = proof_from(asked.proof)
    if len(proof.public_key) == PUBLIC_KEY_BYTES:
        answer.proof = proof_to(prover.answer(proof, to, public_key, fields_of(answer)))


def digest_of(request: Any) -> str:
    """Return the addressee of the reply to an order: a digest of the request's signature.
    A request with any other signature may be a partial copy of this one, and its digest differs."""
    return hashlib.sha256(msgpack.packb(list(proof_from(request.proof)))).hexdigest()


def sign_ordered(prover: Prover | None, request: Any, answer: Any) -> None:
    """Put the signature into the reply to an order."""
    if prover is not None:
        with contextlib.suppress(ConfigurationError):  # `/diagnostics` reports it
            sign_answer(prover, request, digest_of(request), answer)


def who_answered(asking: Asking, verifier: Verifies, by: str, to: str, answer: Any) -> Who:
    """Return the sender of a reply. Raises: `UnprovenError` when it is not from that server."""
    return asking.answered(by, to, fields_of(answer), proof_from(answer.proof), verifier)


def check_answer(asked: bytes, verifier: Verifies, by: str, to: str, answer: Any) -> None:
    """Verify that a reply is from the called process. asked: public key of the request. Raises: `UnprovenError`."""
    from ros2_rfm_serving.security.signing import answered

    answered(asked, by, to, fields_of(answer), proof_from(answer.proof), verifier)


def screen(future: Any, is_answer: Callable[[Any], bool]) -> None:
    """Make a future of a call ignore replies that `is_answer` rejects: any process on the domain can send one, and be the first."""
    take = future.set_result

    def set_result(answer: Any) -> None:
        if not future.done() and is_answer(answer):
            take(answer)

    future.set_result = set_result


def is_signed_anew(prover: Prover | None, request: Any, asked: str, answer: Any) -> bool:
    """Return whether a request was refused for lack of a signature, has one now, and is to be sent again.
    Raises: `ConfigurationError`."""
    challenge = bytes(getattr(answer, "challenge", b""))
    if prover is None or not challenge:
        return False
    sign(prover, request, asked, challenge)
    return True


class Signing:
    """Signatures of one request.

    It is signed for the challenge that the reply contains, and again when that has expired meanwhile. The number of signatures is
    limited, because a process that sends a new challenge every time is not the one that was called."""

    def __init__(self, prover: Prover | None, asked: str, verifier: Verifies | None = None) -> None:
        """Create the state of a request. verifier: verifies replies; None: every reply is accepted."""
        self._prover, self._asked, self._verifier, self._signed = prover, asked, verifier, 0

    def call(self, client: Any, request: Any, later: Callable[[float, Callable[[], object]], object] | None = None) -> Any:
        """Send the request and return the future of the authentic reply. later: calls a function after some seconds, for
        services that may have no certificate: after `GENUINE_S` without an authentic reply, any reply counts."""
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
        """Return whether the request is signed now and to be sent again, as `is_signed_anew`.
        Raises: `ConfigurationError`; `UnprovenError` when it was signed too often."""
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
    """Return the enclave of this process; None: it has none. Raises: `ConfigurationError` when it cannot be used."""
    enclave = enclave_of_environment()
    if enclave is None:
        return None
    try:
        import cryptography  # noqa: F401
    except ImportError:
        fix = "pip install 'ros2-rfm-serving[security]'"
        raise ConfigurationError("cryptography is not installed", key=ENCLAVE, fix=fix) from None
    return enclave
