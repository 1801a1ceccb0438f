"""Writing of a factory's security: `rfm security init`, `add`, `rotate` and `revoke`, one at a time.

The record is written last: the same command repeats what was interrupted, and `rfm security check` reports a certificate that was
issued in the meantime.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Concatenate, ParamSpec

from cryptography import x509

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.graph_names import NAME, Names
from ros2_rfm_serving.private_files import PRIVATE_FOLDER
from ros2_rfm_serving.security import dds, zenoh
from ros2_rfm_serving.security.authority import MEMBER_DAYS, Authority, Identity, check_subject, load_certificate
from ros2_rfm_serving.security.folder import (
    CERTIFICATE,
    GOVERNANCE,
    IDENTITY_CA,
    KEY,
    PERMISSIONS,
    PERMISSIONS_CA,
    REVOKED,
    Folder,
    make,
    read,
    write_private,
    write_public,
)
from ros2_rfm_serving.security.members import Member
from ros2_rfm_serving.security.permissions import Permissions
from ros2_rfm_serving.security.record import MemberEntry, Record, RevokedEntry
from ros2_rfm_serving.security.tokens import hashed, new_token
from ros2_rfm_serving.security.wire_table import Role

P = ParamSpec("P")
LINKS = (
    ("public", "ca.cert.pem", IDENTITY_CA),
    ("public", "ca.cert.pem", PERMISSIONS_CA),
    ("private", "ca.key.pem", "identity_ca.key.pem"),
    ("private", "ca.key.pem", "permissions_ca.key.pem"),
)
"""Links under the names that SROS2's own tools use."""


@dataclass(frozen=True)
class Issuer:
    """Issuer of one factory, which has the key of its authority."""

    folder: Folder
    authority: Authority
    record: Record
    days: float = MEMBER_DAYS

    @staticmethod
    def create(folder: Folder, record: Record, now: datetime) -> Issuer:
        """Create an authority. Raises: `ConfigurationError` where there is one already, whose certificates would become invalid."""
        if folder.record.exists():
            fix = "rfm security rotate, or another folder"
            raise ConfigurationError("there is a certificate authority already", file=str(folder.root), fix=fix)
        if folder.authority_key.exists():
            problem = (
                f"there is a certificate authority, and no {folder.record.name}: `rfm security init` was cut short, or it is lost"
            )
            fix = f"remove {folder.root} if nobody has a certificate of it; else put back the file"
            raise ConfigurationError(problem, file=str(folder.root), fix=fix)
        authority = Authority.new(f"{record.factory} rfm_serving CA", now)
        write_private(folder.authority_key, authority.identity.key_pem)
        folder.authority_key.parent.chmod(PRIVATE_FOLDER)
        write_public(folder.authority, authority.identity.certificate_pem)
        for below, target, name in LINKS:
            (folder.root / below / name).unlink(missing_ok=True)
            (folder.root / below / name).symlink_to(target)
        return Issuer(folder, authority, record)

    @staticmethod
    def open(folder: Folder) -> Issuer:
        """Load the authority of a folder. Raises: `ConfigurationError`."""
        try:
            authority = Authority.load(read(folder.authority), read(folder.authority_key))
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"cannot be used: {error}", file=str(folder.authority_key)) from None
        return Issuer(folder, authority, Record.load(folder))

    def serials_of(self, member: str) -> tuple[str, ...]:
        """Return the serials of all certificates that a member may have and that are not revoked."""
        revoked = {one.serial for one in self.record.revoked}
        entry = self.record.members.get(member)
        known = (*entry.former, entry.serial) if entry else ()
        return tuple(serial for serial in dict.fromkeys((*known, *_written(self.folder, member))) if serial not in revoked)

    # --- writing ---

    def issue(self, members: Iterable[Member], now: datetime) -> Record:
        """Issue new keys and certificates for known and new members, and return the record with them."""
        issued = dict(self.record.members)
        for member in members:
            before, former = issued.get(member.name), self.serials_of(member.name)
            generation = before.generation if before else 1
            name = member.name if generation == 1 else f"{member.name}.{generation}"
            identity = self.authority.issue(name, (member.name, *member.addresses), now, self.days, str(member.role.name).lower())
            self._write_identity(member.name, identity)
            entry = _entry(member, name, identity.certificate, generation)
            issued[member.name] = entry.model_copy(update={"former": former})
        return self.record.model_copy(update={"members": issued})

    def write_documents(self, now: datetime) -> None:
        """Write all that follows from the record and the certificates: permissions, governance, revocations, the router's rules."""
        governance, revoked = dds.governance(self.record.domain), self._revocations(now)
        write_public(self.folder.enclaves / f"{GOVERNANCE}.xml", governance)
        signed = self.authority.sign(governance)
        write_public(self.folder.enclaves / f"{GOVERNANCE}.p7s", signed)
        write_public(self.folder.revoked, revoked)
        members = self.record.all_members
        permissions = Permissions(Names(self.record.namespace), members)
        for name, member in members.items():
            enclave = self.folder.enclave(name)
            if not self.record.members[name].is_revoked:
                certificate = load_certificate(read(enclave / CERTIFICATE), str(enclave / CERTIFICATE))
                document = dds.permissions(name, certificate, permissions.of(member), self.record.domain)
                write_public(enclave / f"{PERMISSIONS}.xml", document)
                write_public(enclave / f"{PERMISSIONS}.p7s", self.authority.sign(document))
            write_public(enclave / f"{GOVERNANCE}.p7s", signed)
            write_public(enclave / REVOKED, revoked)
        zenoh.write(self.folder, self.record, permissions)
        self.record.save(self.folder)

    def issue_tokens(self, clients: Iterable[str]) -> Record:
        """Issue a new token for each client; the gateway's file gets their digests, and none of a revoked client."""
        known = _lines(self.folder)
        for client in clients:
            _check_name(client)
            token = new_token()
            write_private(self.folder.client_token(client), token.encode() + b"\n")
            known[client] = hashed(token)
        return self._with_tokens(known)

    def drop_token(self, client: str) -> Record:
        known = _lines(self.folder)
        known.pop(client, None)
        self.folder.client_token(client).unlink(missing_ok=True)
        return self._with_tokens(known)

    def _with_tokens(self, known: dict[str, str]) -> Record:
        text = "".join(f"{name} {digest}\n" for name, digest in known.items())
        write_private(self.folder.door_tokens, f"# client, and SHA-256 of its token\n{text}".encode())
        return self.record.model_copy(update={"clients": tuple(known)})

    def _write_identity(self, member: str, identity: Identity) -> None:
        enclave = self.folder.enclave(member)
        enclave.mkdir(parents=True, exist_ok=True)
        write_private(enclave / KEY, identity.key_pem)
        write_public(enclave / CERTIFICATE, identity.certificate_pem)
        for name in (IDENTITY_CA, PERMISSIONS_CA):
            write_public(enclave / name, self.authority.identity.certificate_pem)

    def _revocations(self, now: datetime) -> bytes:
        return self.authority.revocations([int(one.serial, 16) for one in self.record.revoked], now)


def _alone(issues: Callable[Concatenate[Folder, P], Record]) -> Callable[Concatenate[Folder, P], Record]:
    @functools.wraps(issues)
    def alone(folder: Folder, /, *args: P.args, **kwargs: P.kwargs) -> Record:
        with folder.held():
            return issues(folder, *args, **kwargs)

    return alone


def start(
    folder: Folder, record: Record, members: Mapping[str, Member], clients: Iterable[str], now: datetime, days: float
) -> Record:
    """Write all files for a factory that has none. Raises: `ConfigurationError`, before any file is written, where a name is
    wrong."""
    Names(record.namespace)
    for client in (clients := list(clients)):
        _check_name(client)
    for member in members.values():
        check_subject(member.name, member.addresses)
    make(folder.root)
    with folder.held():
        issuer = replace(Issuer.create(folder, record, now), days=days)
        issuer = replace(issuer, record=issuer.issue(members.values(), now))
        issuer = replace(issuer, record=issuer.issue_tokens(clients))
        issuer.write_documents(now)
    return issuer.record


@_alone
def add(folder: Folder, members: Mapping[str, Member], now: datetime, days: float) -> Record:
    """Issue certificates for a robot and its world, which are new. Raises: `ConfigurationError`, before any file is written."""
    issuer = replace(Issuer.open(folder), days=days)
    for name, member in sorted(members.items()):  # a robot before its world
        _check_new(issuer.record, name)
        check_subject(name, member.addresses)
    issuer = replace(issuer, record=issuer.issue(members.values(), now))
    issuer = replace(issuer, record=issuer.issue_tokens(sorted({member.of for member in members.values()})))
    issuer.write_documents(now)
    return issuer.record


@_alone
def rotate(folder: Folder, names: Sequence[str], now: datetime, days: float) -> Record:
    """Issue new keys, certificates and tokens; without names, for all members. Raises: `ConfigurationError`."""
    issuer = replace(Issuer.open(folder), days=days)
    record = issuer.record
    chosen = names or [*(name for name, entry in record.members.items() if not entry.is_revoked), *record.clients]
    for name in chosen:
        if name not in record.clients:
            record.entry(name)
    issuer = replace(issuer, record=issuer.issue([record.member(name) for name in chosen if name in record.members], now))
    robots = {name for name in chosen if name in record.members and record.members[name].role == Role.ROBOT.name}
    issuer = replace(issuer, record=issuer.issue_tokens(sorted({*robots, *(name for name in chosen if name in record.clients)})))
    issuer.write_documents(now)
    return issuer.record


@_alone
def revoke(folder: Folder, name: str, now: datetime) -> Record:
    """Revoke the token and all certificates of a member or client. Raises: `ConfigurationError` for one that has neither."""
    issuer = Issuer.open(folder)
    is_client = name in issuer.record.clients
    if name in issuer.record.members or not is_client:
        issuer = replace(issuer, record=_without(issuer.record, name, issuer.serials_of(name), now))
        (folder.enclave(name) / KEY).unlink(missing_ok=True)
    if is_client:
        issuer = replace(issuer, record=issuer.drop_token(name))
    issuer.write_documents(now)
    return issuer.record


def _without(record: Record, member: str, serials: Iterable[str], now: datetime) -> Record:
    entry = record.entry(member)
    if entry.is_revoked:
        fix = f"rfm security rotate --member {member} issues anew"
        raise ConfigurationError(f"{member} has nothing that could be revoked", key="member", fix=fix)
    gone = [RevokedEntry(member=member, serial=serial, when=now) for serial in serials]
    left = entry.model_copy(update={"is_revoked": True, "former": (), "generation": entry.generation + 1})
    return record.model_copy(update={"revoked": (*record.revoked, *gone), "members": {**record.members, member: left}})


def _written(folder: Folder, member: str) -> list[str]:
    """Return the serial of the member's certificate file, which differs from the record where a rotation was interrupted."""
    file = folder.enclave(member) / CERTIFICATE
    try:
        return [f"{load_certificate(read(file), str(file)).serial_number:x}"]
    except ConfigurationError:
        return []


def _entry(member: Member, common_name: str, certificate: x509.Certificate, generation: int) -> MemberEntry:
    return MemberEntry(
        role=str(member.role.name),
        of=member.of,
        common_name=common_name,
        serial=f"{certificate.serial_number:x}",
        generation=generation,
        addresses=member.addresses,
        topics=dict(member.topics),
    )


def _check_name(name: str, key: str = "client") -> None:
    """Check a name. Raises: `ConfigurationError`."""
    if not NAME.fullmatch(name):
        fix = "letters, digits and underscores, a letter first"
        raise ConfigurationError(f"{name!r} is no name", key=key, fix=fix)


def _check_new(record: Record, member: str) -> None:
    """Check the name of a new member. Raises: `ConfigurationError` for one that is in use, or was."""
    _check_name(member, "robot")
    if entry := record.members.get(member):
        what = "is revoked" if entry.is_revoked else f"has a certificate already, as {entry.role.lower()}"
        is_robots = entry.role in (Role.ROBOT.name, Role.WORLD.name)
        fix = f"rfm security rotate --member {member}, or another name" if is_robots else "choose another name"
        raise ConfigurationError(f"{member} {what}", key="robot", fix=fix)
    if member in record.clients:
        fix = "choose another name, or revoke that client first"
        raise ConfigurationError(f"{member} is a client of the websocket door", key="robot", fix=fix)


def _lines(folder: Folder) -> dict[str, str]:
    if not folder.door_tokens.exists():
        return {}
    lines = [line.split() for line in read(folder.door_tokens).decode().splitlines() if not line.startswith("#")]
    return {line[0]: line[1] for line in lines if len(line) == 2}
