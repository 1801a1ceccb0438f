"""`manifest.json` of a recording: size and SHA-256 of each file that is whole, and of `metadata.yaml`.

It covers what no record can: the index and the end of the last file, and the folder's description. Whoever changes a file can write
it anew; only the signature of a certificate, where there is one, tells that.
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
    """Hexadecimal."""


class Signature(NamedTuple):
    certificate: bytes
    """X.509, DER."""
    signature: bytes
    """64 bytes: r and s of ECDSA, P-256, SHA-256."""


Sign = Callable[[bytes], Signature | None]
"""Signs a text with the certificate of this process; None: it cannot now."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One that was read."""

    files: Mapping[str, FileSum]
    metadata: tuple[str, ...]
    """SHA-256 of `metadata.yaml`: two while one takes the place of the other."""
    mended: tuple[str, ...]
    """Files that `rfm record --recover` gave an end: their bytes are its, and not the recorder's."""
    ended: bool
    """The recorder ended in order, and the last record of its chain is in the last file."""
    text: bytes
    """What is signed."""
    signature: Signature | None
    problem: str
    """Why it is not as it was written; empty: it is."""


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
    """None: there is none. One that is damaged says so. Raises: `RfmError`: it cannot be read."""
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
    """With the SHA-256 of itself last: a byte that flips is found in this file, too."""
    return json.dumps({**body, "sha256": sha256_of(_plain(body))}, indent=1) + "\n"
