"""Signatures of this process for what it writes about itself: audit pages, and the manifest of a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ros2_rfm_serving.audit.manifest import Sign, Signature
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.ros.node.doorkeeper import prover_of_member, prover_of_process

if TYPE_CHECKING:
    from ros2_rfm_serving.security.signing import Prover


def signer_of_process() -> Sign | None:
    """Return the function that signs a text; None: the process has no certificate. Raises: `ConfigurationError`."""
    return _signer(prover_of_process())


def signer_of_writer(writer: str) -> Sign | None:
    """Return the function that signs pages of a writer (`<role>/<name>`), as `signer_of_process`. Raises: `ConfigurationError`."""
    role, _, name = writer.partition("/")
    return _signer(prover_of_member(name)) if role == "robot" else signer_of_process()


def _signer(prover: Prover | None) -> Sign | None:
    if prover is None:
        return None

    def sign(text: bytes) -> Signature | None:
        try:
            return Signature(prover.certificate(), prover.say(text))
        except ConfigurationError:  # `/diagnostics` reports it; readers that demand a certificate ignore the text
            return None

    return sign
