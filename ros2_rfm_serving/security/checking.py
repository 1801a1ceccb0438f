"""Checks of a security folder, for `rfm security check` and for the status of nodes' own certificates in `/diagnostics`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.graph_names import Names
from ros2_rfm_serving.private_files import PRIVATE_FOLDER
from ros2_rfm_serving.security import dds, dds_schema
from ros2_rfm_serving.security.authority import common_name, has_not_begun, is_issued_by, load_certificate
from ros2_rfm_serving.security.folder import (
    CERTIFICATE,
    IDENTITY_CA,
    KEY,
    PERMISSIONS,
    PERMISSIONS_CA,
    REVOKED,
    Folder,
    is_private,
    read,
)
from ros2_rfm_serving.security.permissions import Permissions
from ros2_rfm_serving.security.record import Record

WARNED_DAYS = 30.0
"""Days before the end of a certificate from which on there is a warning."""


class Problem(NamedTuple):
    where: str
    what: str
    fix: str
    is_serious: bool = True
    """Something does not work or is not protected now; otherwise it will be so before long."""


def check(folder: Folder, now: datetime) -> list[Problem]:
    """Return the problems of a folder; empty: there are none. Raises: `ConfigurationError` for a folder that cannot be checked."""
    record = Record.load(folder)
    authority = load_certificate(read(folder.authority), str(folder.authority))
    permissions = Permissions(Names(record.namespace), record.all_members)
    found = [*_expiry("authority", authority, now), *_open_files(folder), *_strangers(folder, record)]
    for name, entry in record.members.items():
        if entry.is_revoked:
            found.append(Problem(name, "is revoked and has no certificate", f"rfm security rotate --member {name}", False))
            continue
        try:
            found += _member(folder, record, name, authority, now)
            found += _document(folder, record, name, permissions)
        except ConfigurationError as error:
            found.append(Problem(name, str(error), f"rfm security rotate --member {name}"))
    return found


def days_left(enclave: Path, now: datetime) -> float:
    """Return the days until an enclave's certificate ends; negative: it has ended. Raises: `ConfigurationError`."""
    certificate = load_certificate(read(enclave / CERTIFICATE), str(enclave / CERTIFICATE))
    return (certificate.not_valid_after_utc - now) / timedelta(days=1)


def not_begun(enclave: Path, now: datetime) -> str:
    """Return the reason why the certificate is not valid yet; empty: it is valid. Raises: `ConfigurationError`."""
    begins = load_certificate(read(enclave / CERTIFICATE), str(enclave / CERTIFICATE)).not_valid_before_utc
    return has_not_begun(begins, now) if begins > now else ""


def are_revocations_unusable(enclave: Path) -> bool:
    """Return whether a list of revocations exists that is not its authority's.

    Raises: `ConfigurationError` where there is no authority.
    """
    if not (enclave / REVOKED).exists():
        return False
    authority, listed = load_certificate(read(enclave / IDENTITY_CA), str(enclave / IDENTITY_CA)), _revocations(enclave)
    return listed is None or not listed.is_signature_valid(authority.public_key())  # type: ignore[arg-type]


def _member(folder: Folder, record: Record, name: str, authority: x509.Certificate, now: datetime) -> Iterator[Problem]:
    enclave, entry = folder.enclave(name), record.members[name]
    certificate = load_certificate(read(enclave / CERTIFICATE), str(enclave / CERTIFICATE))
    yield from _identity(enclave, certificate, authority)
    yield from _expiry(name, certificate, now)
    if common_name(certificate) != entry.common_name or f"{certificate.serial_number:x}" != entry.serial:
        yield Problem(name, "its certificate is not the one that was issued last", f"rfm security rotate --member {name}")


def _identity(enclave: Path, certificate: x509.Certificate, authority: x509.Certificate) -> Iterator[Problem]:
    fix = f"rfm security rotate --member {enclave.name}"
    if not is_issued_by(certificate, authority):
        yield Problem(enclave.name, "its certificate is another authority's", fix)
    try:
        key = load_pem_private_key(read(enclave / KEY), None)
    except (ValueError, TypeError):
        yield Problem(enclave.name, "its key is no key", fix)
        return
    if key.public_key() != certificate.public_key():
        yield Problem(enclave.name, "its key is not of its certificate", fix)
    if not is_private(enclave / KEY):
        yield Problem(enclave.name, "others on this machine may read its key", f"chmod 600 {enclave / KEY}")
    if are_revocations_unusable(enclave):
        yield Problem(enclave.name, f"its {REVOKED} is no list of revocations of its authority", "rfm security rotate")
    elif (listed := _revocations(enclave)) and listed.get_revoked_certificate_by_serial_number(certificate.serial_number):
        yield Problem(enclave.name, "its certificate is revoked", fix)


def _revocations(enclave: Path) -> x509.CertificateRevocationList | None:
    """Return the list of revocations; None: there is none, or it is not readable."""
    if not (enclave / REVOKED).exists():
        return None
    try:
        return x509.load_pem_x509_crl(read(enclave / REVOKED))
    except ValueError:
        return None


def _expiry(name: str, certificate: x509.Certificate, now: datetime) -> Iterator[Problem]:
    left = (certificate.not_valid_after_utc - now) / timedelta(days=1)
    fix = "rfm security init in a new folder" if name == "authority" else f"rfm security rotate --member {name}"
    if now < certificate.not_valid_before_utc:
        yield Problem(name, f"its certificate begins on {certificate.not_valid_before_utc:%Y-%m-%d}", "set this machine's clock")
    elif left <= 0:
        yield Problem(name, f"its certificate ended on {certificate.not_valid_after_utc:%Y-%m-%d}", fix)
    elif left <= WARNED_DAYS:
        yield Problem(name, f"its certificate ends in {left:.0f} days", fix, is_serious=False)


def _document(folder: Folder, record: Record, name: str, permissions: Permissions) -> Iterator[Problem]:
    enclave, fix = folder.enclave(name), "rfm security rotate"
    document = read(enclave / f"{PERMISSIONS}.xml")
    yield from (Problem(name, f"{PERMISSIONS}.xml: {fault}", fix) for fault in dds_schema.faults(document, PERMISSIONS))
    certificate = load_certificate(read(enclave / CERTIFICATE), str(enclave / CERTIFICATE))
    if document != dds.permissions(name, certificate, permissions.of(record.member(name)), record.domain):
        yield Problem(name, "its permissions are not those of the wire table", fix)
    if document.replace(b"\n", b"\r\n") not in read(enclave / f"{PERMISSIONS}.p7s"):
        yield Problem(name, "its permissions were changed after they were signed", fix)
    read(enclave / PERMISSIONS_CA)


def _strangers(folder: Folder, record: Record) -> Iterator[Problem]:
    """Yield members with certificates that cannot be revoked, because an `add` was interrupted."""
    for certificate in sorted(folder.enclaves.glob(f"*/{CERTIFICATE}")):
        if (name := certificate.parent.name) not in record.members:
            fix = f"rm -r {certificate.parent}, and rfm security add again if it is to be a robot's"
            yield Problem(name, "has a certificate, and is not in security.yaml", fix)


def _open_files(folder: Folder) -> Iterator[Problem]:
    if folder.authority_key.exists():
        private = folder.authority_key.parent
        if private.stat().st_mode & 0o777 & ~PRIVATE_FOLDER or not is_private(folder.authority_key):
            yield Problem(
                "authority", "others on this machine may read its key", f"chmod 700 {private}; chmod 600 {folder.authority_key}"
            )
    tokens = folder.door_tokens.parent
    for file in sorted(tokens.rglob("*")) if tokens.exists() else ():
        if file.is_file() and not is_private(file):
            yield Problem(file.name, "others on this machine may read its token", f"chmod 600 {file}")
