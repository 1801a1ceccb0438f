"""Signatures of enclaves, and derived session keys: ECDSA on P-256 (FIPS 186-5), X25519 (RFC 7748), HKDF (RFC 5869)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Generic, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from ros2_rfm_serving.errors import ConfigurationError, UnprovenError
from ros2_rfm_serving.security.authority import (
    common_name,
    has_not_begun,
    is_issued_by,
    load_certificate,
    member_of,
    role_of,
    utc_now,
)
from ros2_rfm_serving.security.folder import CERTIFICATE, IDENTITY_CA, KEY, REVOKED, read
from ros2_rfm_serving.security.proof import (
    ANSWERS,
    MAX_CERTIFICATE_BYTES,
    MAX_SIGNATURE_BYTES,
    NO_CERTIFICATE,
    NO_PUBLIC_KEY,
    SIGNATURE_BYTES,
    Keys,
    Proof,
    Verifies,
    Who,
    text_of,
)

T = TypeVar("T")
KEY_BYTES = 32
SERVER = "server"
"""Only role that may answer requests."""
SIGNED = ec.ECDSA(hashes.SHA256())
MAX_KNOWN = 4096
"""Limit for cached certificates that were verified: a robot shows the same one with each request."""


class Asking:
    """One signed request, with the secrets that are needed to verify its answer."""

    def __init__(self, proof: Proof, text: bytes, drawn: X25519PrivateKey) -> None:
        self.proof = proof
        self._text, self._drawn = text, drawn

    def keys(self, public_key: bytes) -> Keys:
        """Return the keys that only the server shares. Raises: `UnprovenError` for an answer without a valid public key."""
        return _shared(self._drawn, public_key, self._text)

    def answered(self, by: str, to: str, fields: Sequence[object], proof: Proof, verifier: Verifies) -> Who:
        """Return the verified server of an answer. Raises: `UnprovenError` for one that is not this server's answer to this
        request.

        by: the server that was asked; to: the client. fields: of the answer.
        """
        who = answered(self.proof.public_key, by, to, fields, proof, verifier)
        if who.role != SERVER:  # a schedule may name any member of the factory
            raise UnprovenError(f"the certificate of {by!r} is no server's: if it is one, rfm security rotate --member {by}")
        return who


def answered(asked: bytes, by: str, to: str, fields: Sequence[object], proof: Proof, verifier: Verifies) -> Who:
    """Return the verified sender of an answer. asked: public key of the client. Raises: as `Asking.answered`."""
    if proof.challenge != asked:
        raise UnprovenError(f"an answer in the name of {by!r} that is none to what was asked")
    who = verifier.check(proof, text_of(to, fields, proof, ANSWERS))
    if who.name != by:
        raise UnprovenError(f"{who.name} answers in the name of {by!r}")
    return who


class _Read(Generic[T]):
    """Cached content of a file, which is read again after a change.

    A process signs twice a second, and reading a key takes as long as five signatures.
    """

    def __init__(self, file: Path, read: Callable[[Path], T]) -> None:
        self._file, self._read = file, read
        self._seen: tuple[int, int, int] | None = None
        self._value: T | None = None

    def __call__(self) -> T:
        """Return the content. Raises: as `read`."""
        try:
            found = self._file.stat()
            seen = found.st_mtime_ns, found.st_ino, found.st_size
        except OSError:
            seen = None
        if self._value is None or seen is None or seen != self._seen:
            self._value, self._seen = self._read(self._file), seen
        return self._value


class Prover:
    """Signer with the current certificate and key of an enclave."""

    def __init__(self, enclave: Path) -> None:
        self._certificate, self._key = _Read(enclave / CERTIFICATE, _certificate_of), _Read(enclave / KEY, _key_of)

    def sign(self, asked: str, challenge: bytes, fields: Sequence[object]) -> Asking:
        """Return a signed request. Raises: `ConfigurationError` where there is no certificate, or no key."""
        drawn = X25519PrivateKey.generate()
        proof = Proof(self.certificate(), challenge, drawn.public_key().public_bytes_raw())
        text = text_of(asked, fields, proof)
        return Asking(proof._replace(signature=self._key().sign(text, SIGNED)), text, drawn)

    def answer(self, asked: Proof, to: str, public_key: bytes, fields: Sequence[object]) -> Proof:
        """Return the signature of an answer to the client `to` and its request `asked`. Raises: as `sign`."""
        proof = Proof(self.certificate(), asked.public_key, public_key)
        return proof._replace(signature=self._key().sign(text_of(to, fields, proof, ANSWERS), SIGNED))

    def say(self, text: bytes) -> bytes:
        """Return the signature of a message to all: r and s. Raises: as `sign`."""
        r, s = decode_dss_signature(self._key().sign(text, SIGNED))
        return r.to_bytes(SIGNATURE_BYTES // 2, "big") + s.to_bytes(SIGNATURE_BYTES // 2, "big")

    def certificate(self) -> bytes:
        """Return the certificate. Raises: as `sign`."""
        return self._certificate()


def _certificate_of(file: Path) -> bytes:
    """Return the certificate of a file, DER. Raises: `ConfigurationError`."""
    return load_certificate(read(file), str(file)).public_bytes(Encoding.DER)


def _key_of(file: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key of a file. Raises: `ConfigurationError`."""
    try:
        key = load_pem_private_key(read(file), None)
    except (ValueError, TypeError):
        raise ConfigurationError("is no key", file=str(file), fix="rfm security rotate") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigurationError("is on no elliptic curve", file=str(file), fix="rfm security rotate")
    return key


class Verifier:
    """Verifier by the authority and the revocations of this process' own enclave: the revocations are read again after a change."""

    def __init__(self, enclave: Path, now: Callable[[], datetime] = utc_now) -> None:
        """Read authority and revocations. Raises: `ConfigurationError`."""
        self._authority = load_certificate(read(enclave / IDENTITY_CA), str(enclave / IDENTITY_CA))
        self._revocations, self._now = enclave / REVOKED, now
        self._seen = 0, 0, 0
        self._revoked: x509.CertificateRevocationList | None = None
        self._known: dict[bytes, x509.Certificate] = {}
        if self._revocations.exists() and self._revocation_list() is None:  # without an earlier list, nothing would be revoked
            problem, fix = "is no list of revocations of this authority", "copy the enclave's again"
            raise ConfigurationError(problem, file=str(self._revocations), fix=fix)

    def check(self, proof: Proof, text: bytes) -> Who:
        """Return the owner of a signature. Raises: `UnprovenError`."""
        certificate = self._certificate(proof.certificate)
        key = certificate.public_key()
        try:
            if not isinstance(key, ec.EllipticCurvePublicKey) or len(proof.signature) > MAX_SIGNATURE_BYTES:
                raise InvalidSignature
            key.verify(proof.signature, text, SIGNED)
        except InvalidSignature:
            raise UnprovenError("what is asked is not what was signed, or not by whose certificate it is") from None
        name, ends_s = member_of(common_name(certificate)), certificate.not_valid_after_utc.timestamp()
        who = Who(name, certificate.serial_number, ends_s, role_of(certificate))
        if (begins := certificate.not_valid_before_utc) > (now := self._now()):
            raise UnprovenError(f"the certificate of {who.name} {has_not_begun(begins, now)}")
        if not self.is_good(who):
            raise UnprovenError(f"the certificate of {who.name} is revoked, or has ended: rfm security rotate")
        return who

    def check_said(self, certificate: bytes, signature: bytes, text: bytes) -> Who:
        half = SIGNATURE_BYTES // 2
        r, s = (int.from_bytes(part, "big") for part in (signature[:half], signature[half:]))
        return self.check(Proof(certificate, b"", b"", encode_dss_signature(r, s)), text)

    def is_good(self, who: Who) -> bool:
        revoked = self._revocation_list()
        is_revoked = revoked is not None and revoked.get_revoked_certificate_by_serial_number(who.serial) is not None
        return not is_revoked and self._now().timestamp() < who.ends_s

    def answer(self, proof: Proof, text: bytes) -> tuple[bytes, Keys]:
        drawn = X25519PrivateKey.generate()
        return drawn.public_key().public_bytes_raw(), _shared(drawn, proof.public_key, text)

    def _certificate(self, der: bytes) -> x509.Certificate:
        """Return a certificate of the authority. Raises: `UnprovenError`."""
        if (known := self._known.get(der)) is not None:
            return known
        try:
            if not 0 < len(der) <= MAX_CERTIFICATE_BYTES:
                raise ValueError
            certificate = x509.load_der_x509_certificate(der)
        except (ValueError, x509.InvalidVersion):
            raise UnprovenError(NO_CERTIFICATE) from None
        if not is_issued_by(certificate, self._authority):
            raise UnprovenError("its certificate is another authority's")
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[der] = certificate
        return certificate

    def _revocation_list(self) -> x509.CertificateRevocationList | None:
        """Return the revocations; None: there are none yet. A list that is invalid or not the authority's never replaces the last
        one."""
        try:
            found = self._revocations.stat()
        except OSError:
            return self._revoked
        if (seen := (found.st_mtime_ns, found.st_ino, found.st_size)) != self._seen:
            try:
                listed = x509.load_pem_x509_crl(read(self._revocations))
                if listed.is_signature_valid(self._authority.public_key()):  # type: ignore[arg-type]
                    self._revoked, self._seen = listed, seen
            except (ValueError, TypeError, ConfigurationError):
                pass
        return self._revoked


def _shared(drawn: X25519PrivateKey, theirs: bytes, text: bytes) -> Keys:
    """Return the session keys that both sides derive. Raises: `UnprovenError`."""
    try:
        secret = drawn.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:
        raise UnprovenError(NO_PUBLIC_KEY) from None
    both = HKDF(hashes.SHA256(), 2 * KEY_BYTES, hashlib.sha256(text).digest(), b"rfm_serving session").derive(secret)
    return Keys(both[:KEY_BYTES], both[KEY_BYTES:])
