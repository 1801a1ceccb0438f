"""Record of issued and revoked certificates: `security.yaml` in the folder. It has no secrets."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.graph_names import NAME
from ros2_rfm_serving.security.folder import Folder, read, write_public
from ros2_rfm_serving.security.members import Member
from ros2_rfm_serving.security.wire_table import Role

Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
"""Name of a member, and of its folder."""
Serial = Annotated[str, Field(pattern="^[0-9a-f]+$")]
"""Serial number of a certificate, hexadecimal."""


class MemberEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    role: str = Field(pattern=f"^({'|'.join(str(role.name) for role in Role)})$")
    of: str = ""
    common_name: str
    """Common name in its certificate: the member's name, or after a revocation another one, which no old certificate has."""
    serial: Serial
    former: tuple[Serial, ...] = ()
    """Serials of its earlier certificates, which are valid until they end."""
    generation: int = Field(default=1, ge=1)
    """Number from 1, which each revocation increases by one."""
    is_revoked: bool = False
    """The member is revoked, and has had no new certificate since."""
    addresses: tuple[str, ...] = ()
    topics: dict[str, tuple[str, ...]] = {}


class RevokedEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    member: str
    serial: Serial
    when: datetime


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    factory: str
    domain: int = Field(ge=0, le=232)
    namespace: str = ""
    router: str = "localhost"
    """Host of the Zenoh router."""
    place: str = ""
    """Path of the folder, or of a member's part of it, on the machines of the factory; empty: where it was written."""
    members: dict[Name, MemberEntry]
    revoked: tuple[RevokedEntry, ...] = ()
    clients: tuple[str, ...] = ()
    """Clients that have a token of the websocket gateway, and are no members."""

    def save(self, folder: Folder) -> None:
        """Write the record to its folder. Raises: `ConfigurationError`."""
        text = yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        write_public(folder.record, text.encode())

    @staticmethod
    def load(folder: Folder) -> Record:
        """Read the record of a folder. Raises: `ConfigurationError`."""
        try:
            return Record.model_validate(yaml.safe_load(read(folder.record)))
        except (yaml.YAMLError, UnicodeError, ValidationError) as error:
            said = str(error).partition("\n")[0] if not isinstance(error, ValidationError) else _said(error)
            fix = "put back the file that `rfm security` wrote"
            raise ConfigurationError(f"cannot be used: {said}", file=str(folder.record), fix=fix) from None

    def member(self, name: str) -> Member:
        """Return a member. Raises: `ConfigurationError` for an unknown one."""
        entry = self.entry(name)
        return Member(name=name, role=Role[entry.role], of=entry.of, addresses=entry.addresses, topics=entry.topics)

    def entry(self, name: str) -> MemberEntry:
        """Return the entry of a member. Raises: `ConfigurationError` for an unknown one."""
        if name not in self.members:
            known = ", ".join(self.members)
            raise ConfigurationError(f"nobody is named {name!r}", key="member", fix=f"one of {known}")
        return self.members[name]

    @property
    def all_members(self) -> dict[str, Member]:
        return {name: self.member(name) for name in self.members}


def _said(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
