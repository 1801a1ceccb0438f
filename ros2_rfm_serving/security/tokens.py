"""Tokens of people and clients: a line `name token` each, with the token itself or its digest, compared in constant time.

A digest is SHA-256 without salt or stretching: that suffices for tokens that are drawn at random, and only such tokens are issued.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from ros2_rfm_serving.errors import ConfigurationError

MIN_TOKEN_CHARACTERS, MAX_TOKEN_CHARACTERS = 16, 512
HASHED = "sha256:"
DIGEST = re.compile(rf"{HASHED}([0-9a-f]{{64}})")


class Tokens:
    """Tokens by name: the holder of one has access."""

    def __init__(self, named: Mapping[str, str | bytes]) -> None:
        """Store the tokens, each of which is given as text, or as its digest."""
        self._digests = {name: digest(token) if isinstance(token, str) else token for name, token in named.items()}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._digests)

    def holder(self, given: str) -> str:
        """Return the name that a token belongs to; empty: none. The time is independent of the token."""
        mine, found = digest(given[:MAX_TOKEN_CHARACTERS]), ""
        for name, known in self._digests.items():
            found = name if hmac.compare_digest(mine, known) else found
        return found


class TokenFile:
    """Tokens of a file that may change: a name that is removed loses its access at once, without a restart."""

    def __init__(self, file: Path, key: str) -> None:
        """Read the file. key: the option or parameter that names it. Raises: `ConfigurationError`."""
        self._file, self._key = file, key
        self._seen, self._tokens = self._version(), Tokens(read_tokens(file, key))

    def holder(self, given: str) -> str:
        """Return the name that a token has in the file now; a file that became unusable gives access to none."""
        if (seen := self._version()) != self._seen:
            self._seen = seen
            try:
                self._tokens = Tokens(read_tokens(self._file, self._key))
            except ConfigurationError:
                self._tokens = Tokens({})
        return self._tokens.holder(given)

    def knows(self, name: str) -> bool:
        """Return whether a name still has a token."""
        self.holder("")
        return name in self._tokens.names

    def _version(self) -> tuple[int, int, int]:
        try:
            found = self._file.stat()
        except OSError:
            return (0, 0, 0)
        return found.st_mtime_ns, found.st_ino, found.st_size


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def hashed(token: str) -> str:
    """Return a token's digest for a file that others may obtain."""
    return HASHED + digest(token).hex()


def new_token() -> str:
    return secrets.token_urlsafe(24)


def read_tokens(file: Path, key: str = "--token-file") -> dict[str, bytes]:
    """Return name -> digest of each token. A line is a name and a token; # begins a comment. Raises: `ConfigurationError`."""
    try:
        mode, text = file.stat().st_mode, file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise _unusable(file, key, f"cannot be read: {error}", "name a text file") from None
    if mode & 0o077:
        raise _unusable(file, key, "others on this machine may read it", f"chmod 600 {file}")
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for number, line in enumerate(lines, 1):
        if len(line) != 2 or not _is_usable(line[1]):
            fix = f"write `name token`, the token of {MIN_TOKEN_CHARACTERS} to {MAX_TOKEN_CHARACTERS} characters"
            raise _unusable(file, key, f"its token {number} is not usable", fix)
    if not lines or len({line[0] for line in lines}) < len(lines):
        raise _unusable(file, key, "it has no tokens, or two of one name", "write a line `name token` for each person")
    return {name: _digest_of(written) for name, written in lines}


def _is_usable(written: str) -> bool:
    if written.startswith(HASHED):
        return DIGEST.fullmatch(written) is not None
    return MIN_TOKEN_CHARACTERS <= len(written) <= MAX_TOKEN_CHARACTERS


def _digest_of(written: str) -> bytes:
    found = DIGEST.fullmatch(written)
    return bytes.fromhex(found[1]) if found else digest(written)


def _unusable(file: Path, key: str, problem: str, fix: str) -> ConfigurationError:
    return ConfigurationError(problem, file=str(file), key=key, fix=fix)
