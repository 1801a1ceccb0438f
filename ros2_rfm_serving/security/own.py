"""State of a process' own certificate: its location and its validity."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.security.folder import KEY
from ros2_rfm_serving.types.process_problems import CERTIFICATE_INVALID, CERTIFICATE_WARNING

ENCLAVE = "RFM_SERVING_ENCLAVE"
"""Environment variable with the enclave's folder."""
WARNED_DAYS = 30.0
LOOKS_EVERY_S = 10.0
UNUSABLE = "own crl.pem is no list of revocations of its authority, and what it said before holds: copy the enclave's again"


def member_environment(folder: Path, member: str) -> Mapping[str, str]:
    """Return the environment of a member's process.

    DDS Security is active only if `ROS_SECURITY_ENABLE` is set as well, and the middleware supports it.
    """
    root = folder.absolute()
    return {
        ENCLAVE: str(root / "enclaves" / member),
        "ROS_SECURITY_KEYSTORE": str(root),
        "ROS_SECURITY_ENCLAVE_OVERRIDE": f"/{member}",
    }


def has_enclave() -> bool:
    """Return whether this process has an enclave, or should have one."""
    return ENCLAVE in os.environ


def enclave_of_environment() -> Path | None:
    """Return the enclave of this process; None: it has none. Raises: `ConfigurationError` where the variable is set but names no
    folder."""
    folder = os.environ.get(ENCLAVE)
    if folder is None:
        return None
    if not folder.strip():
        fix = f"name a folder of `rfm security`, or unset {ENCLAVE}"
        raise ConfigurationError("is there and names no folder", key=ENCLAVE, fix=fix)
    return Path(folder)


def enclave_of_member(own: Path, member: str) -> Path:
    """Return the enclave of a member that shares a process with others: the one of its name beside `own`, the enclave of the
    process, or `own` where there is none."""
    beside = own.parent / member
    return beside if beside.name == member and (beside / KEY).is_file() else own


class OwnCertificate:
    """Certificate of this process. `look` reads it again periodically, since it may be replaced at run time."""

    def __init__(self, enclave: Path) -> None:
        self._enclave, self._looked_s = enclave, -LOOKS_EVERY_S
        self.days_left: float | None = None
        self.problem = ""
        """Problem of the certificate; empty: it is valid for more than `WARNED_DAYS`, and the revocations are readable."""
        self.is_over = False
        self.is_invalid = False
        """No process accepts it now: it has ended, has not begun, or cannot be read."""
        self.are_revocations_unusable = False

    @staticmethod
    def of_process() -> OwnCertificate | None:
        """Return the certificate of this process; None: it has none. Raises: `ConfigurationError`."""
        return OwnCertificate(enclave) if (enclave := enclave_of_environment()) else None

    def look(self, now_s: float) -> None:
        """Read the certificate again after `LOOKS_EVERY_S`. now_s: monotonic."""
        if now_s - self._looked_s < LOOKS_EVERY_S:
            return
        self._looked_s = now_s
        try:
            from ros2_rfm_serving.security.checking import are_revocations_unusable, days_left, not_begun

            now = datetime.now(timezone.utc)
            self.days_left, too_early = days_left(self._enclave, now), not_begun(self._enclave, now)
        except (ImportError, ConfigurationError) as error:
            self.days_left, self.problem, self.is_invalid = None, f"own certificate: {error}", True
            self.are_revocations_unusable = False
            return
        self.is_over = self.days_left <= 0
        self.is_invalid = self.is_over or bool(too_early)
        left = "has ended" if self.is_over else f"ends in {self.days_left:.0f} days"
        ending = f"own certificate {left}: rfm security rotate" if self.days_left <= WARNED_DAYS else ""
        beginning = f"own certificate {too_early}" if too_early else ""
        self.are_revocations_unusable = are_revocations_unusable(self._enclave)
        self.problem = "; ".join(filter(None, (beginning, ending, UNUSABLE if self.are_revocations_unusable else "")))

    @property
    def problems(self) -> dict[str, str]:
        """Kind -> problem; empty: there is none."""
        return {CERTIFICATE_INVALID if self.is_invalid else CERTIFICATE_WARNING: self.problem} if self.problem else {}

    @property
    def numbers(self) -> dict[str, int]:
        """Metrics: the remaining validity in s, where it is known; whether the certificate is invalid; and 1 where the list of
        revocations cannot be used."""
        left = {} if self.days_left is None else {"certificate_left_s": round(self.days_left * 86_400)}
        unusable = {"revocations_unusable": 1} if self.are_revocations_unusable else {}
        return {**left, "certificate_invalid": int(self.is_invalid), **unusable}

    def figures(self) -> dict[str, object]:
        return {} if self.days_left is None else {"certificate ends in, days": round(self.days_left, 1)}
