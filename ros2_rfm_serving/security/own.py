"""What a process knows of its own certificate: where it lies, and for how long it is good."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from ros2_rfm_serving.errors import ConfigurationError

ENCLAVE = "RFM_SERVING_ENCLAVE"
"""Environment variable with its folder."""
WARNED_DAYS = 30.0
LOOKS_EVERY_S = 10.0


def member_environment(folder: Path, member: str) -> Mapping[str, str]:
    """Of a member's process. DDS Security is in force where `ROS_SECURITY_ENABLE` says so besides, and the middleware has it."""
    root = folder.absolute()
    return {
        ENCLAVE: str(root / "enclaves" / member),
        "ROS_SECURITY_KEYSTORE": str(root),
        "ROS_SECURITY_ENCLAVE_OVERRIDE": f"/{member}",
    }


class OwnCertificate:
    """`look` reads it anew now and then: it is replaced while the process runs."""

    def __init__(self, enclave: Path) -> None:
        self._enclave, self._looked_s = enclave, -LOOKS_EVERY_S
        self.days_left: float | None = None
        self.problem = ""
        """Empty: it is good for more than `WARNED_DAYS`."""
        self.is_over = False

    @staticmethod
    def of_process() -> OwnCertificate | None:
        """None: it has none."""
        return OwnCertificate(Path(folder)) if (folder := os.environ.get(ENCLAVE)) else None

    def look(self, now_s: float) -> None:
        """now_s: monotonic."""
        if now_s - self._looked_s < LOOKS_EVERY_S:
            return
        self._looked_s = now_s
        try:
            from ros2_rfm_serving.security.checking import days_left

            self.days_left = days_left(self._enclave, datetime.now(timezone.utc))
        except (ImportError, ConfigurationError) as error:
            self.days_left, self.problem = None, f"own certificate: {error}"
            return
        self.is_over = self.days_left <= 0
        left = "has ended" if self.is_over else f"ends in {self.days_left:.0f} days"
        self.problem = f"own certificate {left}: rfm security rotate" if self.days_left <= WARNED_DAYS else ""

    def figures(self) -> dict[str, object]:
        return {} if self.days_left is None else {"certificate ends in, days": round(self.days_left, 1)}
