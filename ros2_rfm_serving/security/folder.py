"""Layout of a factory's security folder: an SROS2 keystore, with further files that are not DDS's.

public/ca.cert.pem, crl.pem              readable for all private/ca.key.pem                       stays with the issuer; no machine
of the factory needs it enclaves/<member>/                       all files of one process, and the only part that is copied to its
machine zenoh/router.json5                       configuration of the router tokens/door, tokens/clients/<name>       digests that
servers compare with; the tokens themselves, one file per client security.yaml                            certificates of all
members, and revoked certificates
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.private_files import PRIVATE_FILE, PRIVATE_FOLDER

CERTIFICATE, KEY, IDENTITY_CA, PERMISSIONS_CA = "cert.pem", "key.pem", "identity_ca.cert.pem", "permissions_ca.cert.pem"
GOVERNANCE, PERMISSIONS, REVOKED = "governance", "permissions", "crl.pem"


@dataclass(frozen=True)
class Folder:
    root: Path

    @property
    def authority(self) -> Path:
        return self.root / "public" / "ca.cert.pem"

    @property
    def authority_key(self) -> Path:
        return self.root / "private" / "ca.key.pem"

    @property
    def revoked(self) -> Path:
        return self.root / "public" / REVOKED

    @property
    def record(self) -> Path:
        return self.root / "security.yaml"

    @property
    def enclaves(self) -> Path:
        return self.root / "enclaves"

    @property
    def router(self) -> Path:
        return self.root / "zenoh" / "router.json5"

    @property
    def door_tokens(self) -> Path:
        return self.root / "tokens" / "door"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder while certificates are issued.

        Of two concurrent writers, the later would restore what it read before the earlier one revoked it. A file system without
        locks (such as some network file systems) excludes none. Raises: `ConfigurationError`.
        """
        try:
            handle = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise _unread(self.root, error) from None
        try:
            with suppress(OSError):
                _lock(handle, self.root)
            yield
        finally:
            os.close(handle)

    def enclave(self, member: str) -> Path:
        return self.enclaves / member

    def client_token(self, client: str) -> Path:
        return self.root / "tokens" / "clients" / client


def make(folder: Path) -> None:
    """Create a folder. Raises: `ConfigurationError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritten(folder, error) from None


def write_public(file: Path, content: bytes) -> None:
    """Write a file atomically. Raises: `ConfigurationError`."""
    _write(file, content, 0o644)


def write_private(file: Path, content: bytes) -> None:
    """Write a file that no other user of this machine can read at any time. Raises: `ConfigurationError`."""
    _write(file, content, PRIVATE_FILE)


def read(file: Path) -> bytes:
    """Return the content of a file. Raises: `ConfigurationError`."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise _unread(file, error) from None


def is_private(file: Path) -> bool:
    return not file.stat().st_mode & 0o077


def _keep(folder: Path) -> None:
    """Flush a folder to the disk, so that a replaced file survives a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write(file: Path, content: bytes, mode: int) -> None:
    new = file.with_name(f".{file.name}.new")
    try:
        private = mode == PRIVATE_FILE
        file.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER if private else 0o755)
        new.unlink(missing_ok=True)
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)
        _keep(file.parent)
    except OSError as error:
        raise _unwritten(file, error) from None


def _unwritten(file: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"cannot be written: {error.strerror}", file=str(file), fix="choose a folder that can be written")


def _unread(file: Path, error: OSError) -> ConfigurationError:
    fix = "name the folder that `rfm security init` wrote"
    return ConfigurationError(f"cannot be read: {error.strerror}", file=str(file), fix=fix)


def _lock(handle: int, root: Path) -> None:
    """Lock a folder.

    Raises: `ConfigurationError` while another process holds the lock; `OSError` where there are no locks.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fix = "do it again when that has ended"
        raise ConfigurationError("another `rfm security` writes there now", file=str(root), fix=fix) from None
