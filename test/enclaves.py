"""Enclaves of one authority, as `rfm security init` writes them, for tests of proofs."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

from ros2_rfm_serving.security.authority import Authority, utc_now
from ros2_rfm_serving.security.folder import CERTIFICATE, IDENTITY_CA, KEY, REVOKED, write_private, write_public

OWN = ("scheduler",)
SERVERS = re.compile(r"s\d|server")


class Enclaves:
    def __init__(self, root: Path, name: str = "plant") -> None:
        self.root, self.authority = root, Authority.new(name, utc_now())

    def make(self, name: str, begun_days: float = 0, days: float = 365, role: str = "") -> Path:
        """begun_days: ago. role: what is named like a server is one, and all else a robot, unless it says something else."""
        enclave = self.root / name
        role = role or (name if name in OWN else "server" if SERVERS.match(name) else "robot")
        identity = self.authority.issue(name, [name], utc_now() - timedelta(days=begun_days), days, role)
        write_private(enclave / KEY, identity.key_pem)
        write_public(enclave / CERTIFICATE, identity.certificate_pem)
        write_public(enclave / IDENTITY_CA, self.authority.identity.certificate_pem)
        return enclave

    def revoke(self, enclave: Path, *serials: int) -> None:
        """As that enclave is told."""
        write_public(enclave / REVOKED, self.authority.revocations(serials, utc_now()))
