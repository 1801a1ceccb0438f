"""Manifest of a recording, `manifest.json`: size and SHA-256 of each complete file, and of `metadata.yaml`.

It covers the parts that no record can: the index and the end of the last file, and the folder's description. Anyone who changes a
file can rewrite it; only the signature of a certificate, where there is one, reveals that.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ros2_rfm_serving.errors import RfmError

MANIFEST = "manifest.json"
VERSION = 1
SIGNED_AS = b"rfm_serving says manifest\0"
BLOCK_BYTES = 1 << 20
LARGEST_BYTES = 1 << 24


class FileSum(NamedTuple):
    size: int
    sha256: str
    """Digest (hexadecimal)."""


class Signature(NamedTuple):
    certificate: bytes
    """Certificate (X.509, DER)."""
    signature: bytes
    """Signature of 64 bytes: r and s of ECDSA, P-256, SHA-256."""


Sign = Callable[[bytes], Signature | None]
"""Function that signs a text with the certificate of this process; it returns None when it cannot sign now."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Contents of a manifest that was read."""

    files: Mapping[str, FileSum]
    metadata: tuple[str, ...]
    """SHA-256 of `metadata.yaml`: two values while one version replaces the other."""
    mended: tuple[str, ...]
    """Files that `rfm record --recover` completed: their bytes are its own, not the recorder's."""
    ended: bool
    """True if the recorder ended in order, so that the last record of its chain is in the last file."""
    text: bytes
    """Signed text."""
    signature: Signature | None
    problem: str
    """Description of the damage; empty for an intact manifest."""


def manifest(
    files: Mapping[str, FileSum],
    metadata: list[str],
    sign: Sign | None = None,
    mended: tuple[str, ...] = (),
    *,
    ended: bool = False,
) -> str:
    """Return the text of a manifest. metadata: SHA-256 of `metadata.yaml`, hexadecimal. ended: the recorder ended in order."""
    body: dict[str, Any] = {
        "version": VERSION,
        "files": {name: {"size": one.size, "sha256": one.sha256} for name, one in sorted(files.items())},
        "metadata": metadata,
    }
    if mended:
        body["mended"] = sorted(mended)
    if ended:
        body["ended"] = True
    if sign is not None and (signature := sign(SIGNED_AS + _plain(body))) is not None:
        body["certificate"], body["signature"] = (base64.b64encode(part).decode() for part in signature)
    return _text(body)


def read_manifest(file: Path) -> Manifest | None:
    """Return the manifest, None if there is none; `problem` describes a damaged one. Raises: `RfmError` when it cannot be read."""
    try:
        if not file.is_file():  # opening a pipe waits for its other end
            return None
        text = file.read_bytes() if file.stat().st_size <= LARGEST_BYTES else b""
    except OSError as error:
        raise RfmError(f"{file}: cannot be read: {error.strerror or error}") from None
    try:
        body = json.loads(text)
        found = _read(body)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, ArithmeticError) as error:
        return Manifest(files={}, metadata=(), mended=(), ended=False, text=b"", signature=None, problem=f"it is none: {error}")
    problem = "" if _text(_body(body)).encode() == text else "it was changed"
    return Manifest(**{**vars(found), "problem": problem})


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read(body: Mapping[str, Any]) -> Manifest:
    signature = None
    if "signature" in body:
        signature = Signature(base64.b64decode(body["certificate"]), base64.b64decode(body["signature"]))
    signed = {name: value for name, value in _body(body).items() if name not in ("certificate", "signature")}
    return Manifest(
        files={str(name): FileSum(int(one["size"]), str(one["sha256"])) for name, one in body["files"].items()},
        metadata=tuple(map(str, body["metadata"])),
        mended=tuple(map(str, body.get("mended", ()))),
        ended=body.get("ended") is True,
        text=SIGNED_AS + _plain(signed),
        signature=signature,
        problem="",
    )


def _body(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "sha256"}


def _plain(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


def _text(body: Mapping[str, Any]) -> str:
    """Return the text with its own SHA-256 last, so that a flipped byte is found in this file, too."""
    return json.dumps({**body, "sha256": sha256_of(_plain(body))}, indent=1) + "\n"
