"""Messages by the definitions that lie in the recording itself: read, and their type's hash. No ROS."""

from __future__ import annotations

from typing import Any

from ros2_rfm_serving.errors import RfmError


class MessageTypes:
    """Those of one recording. Made when the first is needed: the library takes its time."""

    def __init__(self) -> None:
        self._store: Any = None
        self._known: set[str] = set()

    def add(self, kind: str, definition: str) -> None:
        """definition: `ros2msg`, with all that it is made of. Raises: `RfmError`: it is none."""
        if kind in self._known:
            return
        from rosbags.typesys import Stores, get_types_from_msg, get_typestore

        self._store = self._store or get_typestore(Stores.EMPTY)
        try:
            found = get_types_from_msg(definition, kind)
            self._store.register({name: one for name, one in found.items() if name not in self._store.fielddefs})
        except Exception as error:  # of a parser: whatever stands in the file
            raise RfmError(f"{kind}: its definition in the recording cannot be read: {error}") from None
        self._known.add(kind)

    def read(self, kind: str, data: bytes) -> Any:
        """An object with the message's fields. Raises: `RfmError`: the bytes are none of that type."""
        try:
            return self._store.deserialize_cdr(data, kind)
        except Exception as error:  # of code made from the definition: whatever stands in the file
            raise RfmError(f"{kind}: {len(data)} bytes are no such message: {type(error).__name__}: {error}") from None

    def hash(self, kind: str, definition: str) -> str:
        """As ROS 2 has it (REP 2016); empty: the definition is none, or an action's, parts of which the library names otherwise."""
        if "/action/" in kind:
            return ""
        try:
            self.add(kind, definition)
            return str(self._store.hash_rihs01(kind))
        except Exception:  # as above; the hash is for tools, the message is recorded without it
            return ""
