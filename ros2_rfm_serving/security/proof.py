"""Authentication of clients, servers and publishers: both sign once, and use message authentication codes afterwards.

A client signs with the key of its enclave: the request, the server, a challenge of that server, and a fresh X25519 key
(`signing.py`). The server signs the answer together with that key and one of its own. Both sides derive the session's keys from
that; these keys never travel, and authenticate every message of the session, one in each direction (HMAC-SHA-256, RFC 2104). A
recording of all messages is useless to an attacker, and no clock but the monotonic one is used, except for the validity of a
certificate.
"""

from __future__ import annotations

import hmac
import math
import secrets
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgpack

from ros2_rfm_serving.errors import UnprovenError

SEAL_BYTES = 16
NO_SEAL = bytes(SEAL_BYTES)
PUBLIC_KEY_BYTES = 32
"""Size of an X25519 public key."""
CHALLENGE_BYTES, CHALLENGE_S = 16, 30.0
"""Validity of a challenge: it starts with its first publication, and ends when its successor has been current for as long."""
MAX_CERTIFICATE_BYTES, MAX_SIGNATURE_BYTES = 4096, 128
ASKS, ANSWERS, SAYS = "rfm_serving asks", "rfm_serving answers", "rfm_serving says"
"""Labels by which no signature of an answer is valid for a request, or for a message to all."""
SIGNATURE_BYTES = 64
"""Size of the signature of a message to all: r and s of ECDSA."""
NO_PUBLIC_KEY = "a key that is none of X25519"
NO_CERTIFICATE = "no certificate is shown: whoever asks needs its enclave of `rfm security`, named by RFM_SERVING_ENCLAVE"


class Proof(NamedTuple):
    """Signature as it is transmitted."""

    certificate: bytes
    """X.509, DER."""
    challenge: bytes
    public_key: bytes
    signature: bytes = b""


class Keys(NamedTuple):
    """Keys of a session, one for each direction, so that neither side's messages can be mistaken for the other's."""

    asks: bytes
    """Key for the messages of the side that opened the session."""
    answers: bytes


class Who(NamedTuple):
    """Verified owner of a certificate."""

    name: str
    """Name of the owner in the factory."""
    serial: int
    ends_s: float
    """End of its certificate by the wall clock, in s since the epoch."""
    role: str = ""
    """Role of the wire table in its certificate; empty: it has none."""


class Says(Protocol):
    """Interface of `signing.Prover` for messages to all."""

    def certificate(self) -> bytes:
        """Return the certificate. Raises: `ConfigurationError`."""
        ...

    def say(self, text: bytes) -> bytes:
        """Return a signature of `SIGNATURE_BYTES`. Raises: `ConfigurationError`."""
        ...


class Verifies(Protocol):
    """Interface of `signing.Verifier`, which needs no certificates of others in advance."""

    def check(self, proof: Proof, text: bytes) -> Who:
        """Return the verified owner of a signature. Raises: `UnprovenError`."""
        ...

    def check_said(self, certificate: bytes, signature: bytes, text: bytes) -> Who:
        """Return the verified sender of a message to all. Raises: `UnprovenError`."""
        ...

    def is_good(self, who: Who) -> bool:
        """Return whether a certificate is still valid: neither revoked nor ended."""
        ...

    def answer(self, proof: Proof, text: bytes) -> tuple[bytes, Keys]:
        """Return (a fresh public key, the session keys that both sides now have). Raises: `UnprovenError`."""
        ...


class Challenges:
    """Challenges of one process: a signature is accepted once, and while its challenge is valid."""

    def __init__(self) -> None:
        self._current, self._before = secrets.token_bytes(CHALLENGE_BYTES), secrets.token_bytes(CHALLENGE_BYTES)
        self._since_s = -math.inf
        self._taken: tuple[set[bytes], set[bytes]] = set(), set()
        """Public keys of signatures that were accepted under each of the two."""

    def current(self, now_s: float) -> bytes:
        """Return the current challenge. now_s: monotonic."""
        if now_s - self._since_s >= CHALLENGE_S:
            is_stale = now_s - self._since_s >= 2 * CHALLENGE_S  # none was published for a long time
            self._before = secrets.token_bytes(CHALLENGE_BYTES) if is_stale else self._current
            self._current, self._since_s = secrets.token_bytes(CHALLENGE_BYTES), now_s
            self._taken = set(), self._taken[0]
        return self._current

    def check(self, proof: Proof, now_s: float) -> None:
        """Check the freshness of a signature. Raises: `UnprovenError`."""
        if not proof.certificate:
            raise UnprovenError(NO_CERTIFICATE, is_stale=True)
        if proof.challenge != self.current(now_s) and proof.challenge != self._before:
            raise UnprovenError("a proof for another challenge than was told last: ask again with the newest", is_stale=True)
        if len(proof.public_key) != PUBLIC_KEY_BYTES:  # keys of accepted signatures are stored
            raise UnprovenError(NO_PUBLIC_KEY)
        if any(proof.public_key in taken for taken in self._taken):
            raise UnprovenError("a proof that was taken before: it is good once", is_stale=True, is_copy=True)

    def take(self, proof: Proof) -> None:
        """Record an accepted signature, which is not valid again."""
        self._taken[0 if proof.challenge == self._current else 1].add(proof.public_key)


def text_of(whom: str, fields: Sequence[object], proof: Proof, label: str = ASKS) -> bytes:
    """Return the text that is signed. whom: its receiver."""
    return bytes(msgpack.packb([label, whom, list(fields), *proof[:3]]))


def seal(key: bytes, data: bytes | memoryview) -> bytes:
    return hmac.digest(key, data, "sha256")[:SEAL_BYTES]


def is_sealed(key: bytes, data: bytes | memoryview, given: bytes) -> bool:
    return hmac.compare_digest(seal(key, data), given)
