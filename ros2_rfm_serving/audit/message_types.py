"""Message types by the definitions in the recording itself: deserialization and type hashes, without ROS."""

from __future__ import annotations

from typing import Any

from ros2_rfm_serving.errors import RfmError


class MessageTypes:
    """Types of one recording. The library is imported when the first type is needed, because the import is slow."""

    def __init__(self) -> None:
        self._store: Any = None
        self._known: set[str] = set()

    def add(self, kind: str, definition: str) -> None:
        """Register a type. definition: `ros2msg`, with all nested types. Raises: `RfmError` when the definition is invalid."""
        if kind in self._known:
            return
        from rosbags.typesys import Stores, get_types_from_msg, get_typestore

        self._store = self._store or get_typestore(Stores.EMPTY)
        try:
            found = get_types_from_msg(definition, kind)
            self._store.register({name: one for name, one in found.items() if name not in self._store.fielddefs})
        except Exception as error:  # the parser raises whatever the file's content causes
            raise RfmError(f"{kind}: its definition in the recording cannot be read: {error}") from None
        self._known.add(kind)

    def read(self, kind: str, data: bytes) -> Any:
        """Return an object with the message's fields. Raises: `RfmError` when the bytes are not of that type."""
        try:
            return self._store.deserialize_cdr(data, kind)
        except Exception as error:  # code made from the definition raises whatever the file's content causes
            raise RfmError(f"{kind}: {len(data)} bytes are no such message: {type(error).__name__}: {error}") from None

    def hash(self, kind: str, definition: str) -> str:
        """Return the type hash of ROS 2 (REP 2016); empty for an invalid definition, or an action, whose parts the
        library renames."""
        if "/action/" in kind:
            return ""
        try:
            self.add(kind, definition)
            return str(self._store.hash_rihs01(kind))
        except Exception:  # as above; the hash is for tools, and the message is recorded without it
            return ""
