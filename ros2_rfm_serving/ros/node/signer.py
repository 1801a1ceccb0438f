"""This process's certificate, for what it writes of itself: audit pages, and the manifest of a recording."""

from __future__ import annotations

from ros2_rfm_serving.audit.manifest import Sign, Signature
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.ros.node.doorkeeper import prover_of_process


def signer_of_process() -> Sign | None:
    """Return what signs a text; None: it has no certificate. Raises: `ConfigurationError`."""
    prover = prover_of_process()
    if prover is None:
        return None

    def sign(text: bytes) -> Signature | None:
        try:
            return Signature(prover.certificate(), prover.say(text))
        except ConfigurationError:  # `/diagnostics` says it; what is written so counts for nobody who demands a certificate
            return None

    return sign
