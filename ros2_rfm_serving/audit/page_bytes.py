"""Conversion between pages of records and their serialized form, `rfm_serving/msg/AuditPage` in CDR, without ROS."""

from __future__ import annotations

import struct

from ros2_rfm_serving.audit.chain import Page
from ros2_rfm_serving.errors import RfmError

LITTLE_ENDIAN = b"\x00\x01\x00\x00"


def page_bytes(page: Page, stamp_ns: int) -> bytes:
    """Return the serialized page. stamp_ns: ROS time of its creation."""
    data = bytearray(LITTLE_ENDIAN + struct.pack("<iI", *divmod(stamp_ns, 1_000_000_000)))
    for text in (page.writer, page.writer):  # frame_id, and its field
        _put_text(data, text.encode())
    data += b"\0" * (-(len(data) - 4) % 8) + struct.pack("<QQ", page.run, page.first)
    _put_text(data, page.previous.encode())
    _put_text(data, b"\n".join(page.lines))
    return bytes(data)


def page_of(data: bytes) -> Page:
    """Return the page in serialized bytes; damaged text stays readable. Raises: `RfmError` when the page is damaged."""
    try:
        at = len(LITTLE_ENDIAN) + 8
        _, at = _text(data, at)
        writer, at = _text(data, at)
        at += -(at - 4) % 8
        run, first = struct.unpack_from("<QQ", data, at)
        previous, at = _text(data, at + 16)
        lines, _ = _text(data, at)
    except struct.error as error:
        raise RfmError(f"a page of records is damaged: {error}") from None
    return Page(
        writer=writer.decode(errors="replace"),
        run=run,
        first=first,
        previous=previous.decode(errors="replace"),
        lines=tuple(line for line in lines.split(b"\n") if line),
    )


def _put_text(data: bytearray, text: bytes) -> None:
    data += struct.pack("<I", len(text) + 1) + text + b"\0"
    data += b"\0" * (-len(data) % 4)


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the text at an offset, and the offset of the next field, which is aligned to 4 bytes."""
    (size,) = struct.unpack_from("<I", data, at)
    if at + 4 + size > len(data):
        raise struct.error("a text is longer than its message")
    return data[at + 4 : at + 4 + max(0, size - 1)], at + 4 + size + (-size % 4)
