"""Who asks, who answers, and who says what follows: signed once by both, sealed from then on.

Whoever asks signs with the key of its enclave: what it asks, of whom, a challenge that those made up, and a key of X25519 that it
has drawn for this asking (`signing.py`). Whoever answers signs the answer, over that key, and one of its own. Both sides derive the
session's keys from that; they never travel, and seal every message of the session, one each way (HMAC-SHA-256, RFC 2104). A
recording of all of it is of no use to anybody, and no clock but the monotonic one is asked, except for how long a certificate is
good.
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
"""Of X25519."""
CHALLENGE_BYTES, CHALLENGE_S = 16, 30.0
"""A challenge is good from when it is first told until it has been another one's turn for as long."""
MAX_CERTIFICATE_BYTES, MAX_SIGNATURE_BYTES = 4096, 128
ASKS, ANSWERS, SAYS = "rfm_serving asks", "rfm_serving answers", "rfm_serving says"
"""No signature of an answer is one of an asking, nor one of what is said to everybody."""
SIGNATURE_BYTES = 64
"""Of what is said to everybody: r and s of ECDSA."""
NO_PUBLIC_KEY = "a key that is none of X25519"
NO_CERTIFICATE = "no certificate is shown: whoever asks needs its enclave of `rfm security`, named by RFM_SERVING_ENCLAVE"


class Proof(NamedTuple):
    """As it travels."""

    certificate: bytes
    """X.509, DER."""
    challenge: bytes
    public_key: bytes
    signature: bytes = b""


class Keys(NamedTuple):
    """Of a session: what one side has sealed is nothing that the other can have said."""

    asks: bytes
    """Seals what whoever opened it says."""
    answers: bytes


class Who(NamedTuple):
    """Who has shown a certificate."""

    name: str
    """As it has it in the factory."""
    serial: int
    ends_s: float
    """Wall clock, since the epoch: its certificate."""
    role: str = ""
    """Of the wire table, as its certificate says; empty: it says none."""


class Says(Protocol):
    """`signing.Prover`, of what is said to everybody."""

    def certificate(self) -> bytes:
        """Raises: `ConfigurationError`."""
        ...

    def say(self, text: bytes) -> bytes:
        """A signature of `SIGNATURE_BYTES`. Raises: `ConfigurationError`."""
        ...


class Verifies(Protocol):
    """`signing.Verifier`, to whom nobody's certificates need be at hand."""

    def check(self, proof: Proof, text: bytes) -> Who:
        """Raises: `UnprovenError`."""
        ...

    def check_said(self, certificate: bytes, signature: bytes, text: bytes, *, must_be_valid: bool = True) -> Who:
        """Who has said it to everybody. must_be_valid: as of `signing.Verifier.check`. Raises: `UnprovenError`."""
        ...

    def is_good(self, who: Who) -> bool:
        """Neither revoked nor ended meanwhile."""
        ...

    def answer(self, proof: Proof, text: bytes) -> tuple[bytes, Keys]:
        """(a public key of our own, the keys that both have now). Raises: `UnprovenError`."""
        ...


class Challenges:
    """Of one process: a proof is taken once, and while its challenge is good."""

    def __init__(self) -> None:
        self._current, self._before = secrets.token_bytes(CHALLENGE_BYTES), secrets.token_bytes(CHALLENGE_BYTES)
        self._since_s = -math.inf
        self._taken: tuple[set[bytes], set[bytes]] = set(), set()
        """Keys of proofs that were taken under each of the two."""

    def current(self, now_s: float) -> bytes:
        """now_s: monotonic."""
        if now_s - self._since_s >= CHALLENGE_S:
            is_stale = now_s - self._since_s >= 2 * CHALLENGE_S  # nobody was told of any for long
            self._before = secrets.token_bytes(CHALLENGE_BYTES) if is_stale else self._current
            self._current, self._since_s = secrets.token_bytes(CHALLENGE_BYTES), now_s
            self._taken = set(), self._taken[0]
        return self._current

    def check(self, proof: Proof, now_s: float) -> None:
        """Raises: `UnprovenError`."""
        if not proof.certificate:
            raise UnprovenError(NO_CERTIFICATE, is_stale=True)
        if proof.challenge != self.current(now_s) and proof.challenge != self._before:
            raise UnprovenError("a proof for another challenge than was told last: ask again with the newest", is_stale=True)
        if len(proof.public_key) != PUBLIC_KEY_BYTES:  # those that were taken are kept
            raise UnprovenError(NO_PUBLIC_KEY)
        if any(proof.public_key in taken for taken in self._taken):
            raise UnprovenError("a proof that was taken before: it is good once", is_stale=True, is_copy=True)

    def take(self, proof: Proof) -> None:
        """It is genuine, and from now on it is none."""
        self._taken[0 if proof.challenge == self._current else 1].add(proof.public_key)


def text_of(whom: str, fields: Sequence[object], proof: Proof, label: str = ASKS) -> bytes:
    """What is signed. whom: it is said to."""
    return bytes(msgpack.packb([label, whom, list(fields), *proof[:3]]))


def seal(key: bytes, data: bytes | memoryview) -> bytes:
    return hmac.digest(key, data, "sha256")[:SEAL_BYTES]


def is_sealed(key: bytes, data: bytes | memoryview, given: bytes) -> bool:
    return hmac.compare_digest(seal(key, data), given)
