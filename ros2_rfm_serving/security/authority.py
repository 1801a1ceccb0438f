"""Certificate authority of a factory. All keys are EC P-256, which DDS Security requires (9.3.1), and TLS supports too."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key, pkcs7
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ros2_rfm_serving.errors import ConfigurationError

AUTHORITY_DAYS, MEMBER_DAYS = 3650, 365
BACKDATED = timedelta(hours=1)
"""Time by which a certificate is backdated, so that machines with slow clocks accept it at once."""
MAX_COMMON_NAME = 64
"""Limit of X.509."""
MAX_MEMBER_NAME = MAX_COMMON_NAME - 4
"""Limit that leaves room for the successor of a revoked certificate, `.2` to `.999`."""
ROLE = "urn:rfm_serving:"
"""Prefix of a certificate's role among its names; TLS never takes it for the name of a machine."""
HOST = re.compile(r"[\w*][\w.*-]{0,252}", re.ASCII)
REVOKED_FOR = timedelta(days=AUTHORITY_DAYS)


@dataclass(frozen=True)
class Identity:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class Authority:
    """Certificate authority that signs certificates, revocations and documents."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity

    @staticmethod
    def new(name: str, now: datetime, days: int = AUTHORITY_DAYS) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[-MAX_COMMON_NAME:])])
        built = _builder(subject, subject, key, now, days)
        built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        built = built.add_extension(_usage(signs_certificates=True), critical=True)
        return Authority(Identity(built.sign(key, hashes.SHA256()), key))

    @staticmethod
    def load(certificate: bytes, key: bytes) -> Authority:
        """Return the authority of a certificate and its key, both PEM. Raises: `ValueError`, `TypeError`."""
        loaded = load_pem_private_key(key, None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError("its key is on no elliptic curve")
        return Authority(Identity(x509.load_pem_x509_certificate(certificate), loaded))

    def issue(self, name: str, addresses: Iterable[str], now: datetime, days: float = MEMBER_DAYS, role: str = "") -> Identity:
        """Issue a certificate for a process that acts as server under these addresses, and as client.

        role: of the wire table; empty: none.
        """
        key, issuer = ec.generate_private_key(ec.SECP256R1()), self.identity.certificate
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        built = _builder(subject, issuer.subject, key, now, days)
        built = built.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        built = built.add_extension(_usage(signs_certificates=False), critical=True)
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        built = built.add_extension(x509.ExtendedKeyUsage(both), critical=False)
        names = [*map(_general_name, dict.fromkeys(addresses)), *([x509.UniformResourceIdentifier(ROLE + role)] if role else [])]
        built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
        key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.identity.key.public_key())
        built = built.add_extension(key_id, critical=False)
        return Identity(built.sign(self.identity.key, hashes.SHA256()), key)

    def revocations(self, serials: Iterable[int], now: datetime) -> bytes:
        """Return the list of revoked certificates, PEM."""
        issuer = self.identity.certificate.subject
        built = (
            x509.CertificateRevocationListBuilder().issuer_name(issuer).last_update(now - BACKDATED).next_update(now + REVOKED_FOR)
        )
        for serial in serials:
            one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            built = built.add_revoked_certificate(one)
        return built.sign(self.identity.key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def sign(self, document: bytes) -> bytes:
        """Return the document signed as clear-text S/MIME, which DDS Security requires of governance and permissions (9.4.1)."""
        builder = pkcs7.PKCS7SignatureBuilder().set_data(document)
        builder = builder.add_signer(self.identity.certificate, self.identity.key, hashes.SHA256())
        return builder.sign(Encoding.SMIME, [pkcs7.PKCS7Options.Text, pkcs7.PKCS7Options.DetachedSignature])


def check_subject(name: str, addresses: Iterable[str]) -> None:
    """Check a certificate's subject. Raises: `ConfigurationError` for a name or an address that no certificate can have."""
    if len(name) > MAX_MEMBER_NAME:
        fix = f"a name of at most {MAX_MEMBER_NAME} characters"
        raise ConfigurationError(f"{name!r} is too long for a certificate", key="member", fix=fix)
    for address in addresses:
        if not HOST.fullmatch(address) and not _is_ip(address):
            fix = "write gpu-1.plant, 10.0.0.1 or fd00::1, without port; other letters as xn--..."
            raise ConfigurationError(f"{address!r} is no name or address of a machine", key="address", fix=fix)


def load_certificate(pem: bytes, file: str) -> x509.Certificate:
    """Return the certificate of a PEM text. Raises: `ConfigurationError`."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise ConfigurationError(f"is no certificate: {error}", file=file, fix="rfm security rotate") from None


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def common_name(certificate: x509.Certificate) -> str:
    """Return the common name of a certificate; empty: it has none."""
    return next((str(one.value) for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)), "")


def role_of(certificate: x509.Certificate) -> str:
    """Return the role of a certificate; empty: it has none, as certificates from before there were roles."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ""
    said = names.get_values_for_type(x509.UniformResourceIdentifier)
    return next((uri.removeprefix(ROLE) for uri in said if uri.startswith(ROLE)), "")


def member_of(name: str) -> str:
    """Return the member of a common name: a revoked member's successor has a number at its end."""
    return name.partition(".")[0]


def has_not_begun(begins: datetime, now: datetime) -> str:
    """Return the problem that a certificate is not valid yet. The usual cause is the clock of this machine."""
    return f"begins at {begins:%Y-%m-%d %H:%M} UTC, and this machine's clock says {now:%Y-%m-%d %H:%M}: set that clock"


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: float
) -> x509.CertificateBuilder:
    built = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    built = built.serial_number(x509.random_serial_number()).not_valid_before(now - BACKDATED)
    built = built.not_valid_after(max(now - BACKDATED, now + timedelta(days=days)))
    return built.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(address: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(address)) if _is_ip(address) else x509.DNSName(address)


def _is_ip(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True
