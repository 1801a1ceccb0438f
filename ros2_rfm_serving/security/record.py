"""What was issued, to whom, and what is revoked: `security.yaml` in the folder. It holds no secret."""

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
"""Of a folder, too."""
Serial = Annotated[str, Field(pattern="^[0-9a-f]+$")]
"""Hexadecimal, of a certificate."""


class MemberEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    role: str = Field(pattern=f"^({'|'.join(str(role.name) for role in Role)})$")
    of: str = ""
    common_name: str
    """Of its certificate: its own, and after a revocation another one, which no old certificate has."""
    serial: Serial
    former: tuple[Serial, ...] = ()
    """Of its certificates before that one, which are good until they end."""
    generation: int = Field(default=1, ge=1)
    """From 1; one more with each revocation."""
    is_revoked: bool = False
    """Nothing was issued since."""
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
    """Where members find the Zenoh router."""
    place: str = ""
    """Where the folder, or a member's part of it, lies on the machines of the factory; empty: where it was written."""
    members: dict[Name, MemberEntry]
    revoked: tuple[RevokedEntry, ...] = ()
    clients: tuple[str, ...] = ()
    """Who has a token of the websocket door, and is no member."""

    def save(self, folder: Folder) -> None:
        """Raises: `ConfigurationError`."""
        text = yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        write_public(folder.record, text.encode())

    @staticmethod
    def load(folder: Folder) -> Record:
        """Raises: `ConfigurationError`."""
        try:
            return Record.model_validate(yaml.safe_load(read(folder.record)))
        except (yaml.YAMLError, UnicodeError, ValidationError) as error:
            said = str(error).partition("\n")[0] if not isinstance(error, ValidationError) else _said(error)
            fix = "put back the file that `rfm security` wrote"
            raise ConfigurationError(f"cannot be used: {said}", file=str(folder.record), fix=fix) from None

    def member(self, name: str) -> Member:
        """Raises: `ConfigurationError` for one that there is not."""
        entry = self.entry(name)
        return Member(name=name, role=Role[entry.role], of=entry.of, addresses=entry.addresses, topics=entry.topics)

    def entry(self, name: str) -> MemberEntry:
        """Raises: `ConfigurationError` for one that there is not."""
        if name not in self.members:
            known = ", ".join(self.members)
            raise ConfigurationError(f"nobody is named {name!r}", key="member", fix=f"one of {known}")
        return self.members[name]

    @property
    def all_members(self) -> dict[str, Member]:
        return {name: self.member(name) for name in self.members}


def _said(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
