"""ROS 2 on Zenoh, as `rmw_zenoh_cpp` writes it (its design document): names as key expressions, message attachments, and liveliness
tokens for nodes and endpoints.

The module handles text and bytes alone and uses neither ROS nor Zenoh.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from typing import NamedTuple

from ros2_rfm_serving.errors import BadMessageError

GRAPH = "@ros2_lv"
"""Prefix of all tokens. No wildcard matches a chunk with `@`: a subscription to everything receives nothing of the graph."""
SLASH = "%"
"""Replacement of a slash where one chunk holds a whole name."""
GID_BYTES = 16
NAMED = b"\x0fsequence_number"
"""Beginning of an attachment of former versions, whose parts had names."""
_ATTACHMENT = struct.Struct(f"<qqB{GID_BYTES}s")
_NODE_CHUNKS, _ENDPOINT_CHUNKS = 9, 13
MAX_TOKEN_CHARACTERS = 2048
"""Maximum length of a token: anybody with write access to the router chooses names."""


class Kind(enum.Enum):
    NODE = "NN"
    PUBLISHER = "MP"
    SUBSCRIPTION = "MS"
    SERVICE = "SS"
    CLIENT = "SC"


NO_HASH = "TypeHashNotSupported"
"""Hash of every type in ROS 2 Humble."""


class Interface(NamedTuple):
    """Type as Zenoh identifies it: with another hash it is another type."""

    name: str
    """Name as in DDS, `rfm_serving::msg::dds_::Observation_`; of a service without `Request_`."""
    hash: str
    """Hash: RIHS01_..., REP 2016."""

    @staticmethod
    def of(ros_name: str, type_hash: str) -> Interface:
        """Return the interface of a type. ros_name: such as `rfm_serving/msg/Observation`."""
        package, folder, name = ros_name.split("/")
        return Interface(f"{package}::{folder}::dds_::{name}_", type_hash)


class Address(NamedTuple):
    """Key of a topic's messages or a service's requests: `<domain>/<name>/<type>/<hash>`."""

    domain: int
    name: str
    """Absolute name of a topic or service."""
    interface: Interface

    @property
    def key(self) -> str:
        return f"{self.domain}/{self.name.strip('/')}/{self.interface.name}/{self.interface.hash}"

    @property
    def any_version(self) -> str:
        """Key expression that also matches other versions of the type."""
        return f"{self.domain}{self.name}/*/*"

    @staticmethod
    def read(key: str) -> Address:
        """Parse a key. Raises: `BadMessageError`."""
        domain, *name, kind, type_hash = key.split("/") if key.count("/") >= 3 else ("", "", "")
        if not (domain.isascii() and domain.isdecimal() and len(domain) < 4 and name):
            raise BadMessageError("bad_key", f"{key[:200]!r} is not <domain>/<name>/<type>/<hash>")
        return Address(int(domain), "/" + "/".join(name), Interface(kind, type_hash))


class Attachment(NamedTuple):
    """Attachment of a message."""

    sequence: int
    """Sequence number of a publisher's message or a client's request; a response has its request's."""
    stamp_ns: int
    """The sender's wall clock, for tools; no code here reads it."""
    gid: bytes
    """Identity of the publisher or client."""

    def written(self) -> bytes:
        return _ATTACHMENT.pack(self.sequence, self.stamp_ns, GID_BYTES, self.gid)

    @staticmethod
    def read(data: bytes) -> Attachment:
        """Parse an attachment. Raises: `BadMessageError`."""
        if data.startswith(NAMED):
            raise BadMessageError("bad_attachment", "an attachment of rmw_zenoh_cpp before 0.2.4: a newer one is needed")
        if len(data) != _ATTACHMENT.size:
            raise BadMessageError("bad_attachment", f"an attachment of {len(data)} bytes, not {_ATTACHMENT.size}")
        sequence, stamp_ns, size, gid = _ATTACHMENT.unpack(data)
        if size != GID_BYTES or sequence < 0:
            raise BadMessageError("bad_attachment", f"an attachment of number {sequence} with an identity of {size} bytes")
        return Attachment(sequence, stamp_ns, gid)


def qos_text(*, reliable: bool, latched: bool, depth: int) -> str:
    """Return the differences from rmw_zenoh's default: reliable, volatile, the last 42; no deadline, lifespan or lease."""
    return f"{'' if reliable else 2}:{1 if latched else ''}:,{'' if depth == 42 else depth}:,:,:,,"


class Node(NamedTuple):
    domain: int
    session: str
    """Zenoh's identity of the process, hex."""
    number: int
    """Number within the process."""
    namespace: str
    """Namespace: / or a name with a slash in front."""
    name: str

    @property
    def token(self) -> str:
        return self._token(self.number, Kind.NODE)

    def _token(self, entity: int, kind: Kind) -> str:
        namespace = self.namespace.replace("/", SLASH)
        return f"{GRAPH}/{self.domain}/{self.session}/{self.number}/{entity}/{kind.value}/{SLASH}/{namespace}/{self.name}"

    def endpoint_token(self, entity: int, kind: Kind, name: str, interface: Interface, qos: str) -> str:
        mangled = name.replace("/", SLASH)
        return f"{self._token(entity, kind)}/{mangled}/{interface.name}/{interface.hash}/{qos}"


class Endpoint(NamedTuple):
    """Endpoint of a topic or service, from its token."""

    session: str
    kind: Kind
    address: Address


def endpoint_of(token: str) -> Endpoint | None:
    """Parse the token of an endpoint; None: it is a node's. Raises: `BadMessageError` when it is not in rmw_zenoh's format."""
    chunks = token.split("/") if len(token) <= MAX_TOKEN_CHARACTERS else []
    kinds = {kind.value: kind for kind in Kind}
    if len(chunks) < _NODE_CHUNKS or not all(chunks) or chunks[0] != GRAPH or chunks[5] not in kinds:
        raise BadMessageError("bad_token", f"{token[:200]!r} says of nobody who is there")
    if kinds[chunks[5]] is Kind.NODE:
        return None
    if len(chunks) < _ENDPOINT_CHUNKS:  # future releases may add chunks, as rolling does for its buffers
        raise BadMessageError("bad_token", f"{token[:200]!r} does not say of which topic")
    name, interface = chunks[9].replace(SLASH, "/"), Interface(chunks[10], chunks[11])
    address = Address.read(f"{chunks[1]}{name}/{interface.name}/{interface.hash}")
    return Endpoint(chunks[2], kinds[chunks[5]], address)


def gid_of(token: str) -> bytes:
    """Return the identity of an endpoint from its unique token. rmw_zenoh uses another hash; receivers only compare identities."""
    return hashlib.blake2b(token.encode(), digest_size=GID_BYTES).digest()
