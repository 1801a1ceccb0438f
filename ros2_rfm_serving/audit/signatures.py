"""Signatures of audit pages: the last record of a page, `signed`, has a certificate's signature over the chain up to there.

They distinguish a writer's pages from those that another process publishes in its name. Without certificates pages are unsigned.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from ros2_rfm_serving.audit.chain import HASH_KEY, SIGNED, Chain, Page, chained, parsed
from ros2_rfm_serving.audit.manifest import Sign, Signature
from ros2_rfm_serving.errors import UnprovenError

SIGNED_AS = b"rfm_serving says AuditPage\0"
CheckSaid = Callable[[bytes, bytes, bytes], Any]
"""Check of certificate, signature and text; returns the signer (`security.proof.Who`). Raises: `UnprovenError` if invalid."""
NAMES = {"recorder": ("recorder",), "dashboard": ("dashboard", "operator", "observer")}
"""Role of a writer -> names of certificates that sign for it; for other roles it is the writer's own name."""


def sign_chain(chain: Chain, now_s: float, sign: Sign | None) -> None:
    """Append the record `signed` to the records since the last page, if there are any. sign: None without a certificate."""
    if sign is None or not len(chain):
        return
    signature = sign(_text(chain.writer, chain.run, chain.number, chain.hash))
    if signature is not None:
        certificate, said = (base64.b64encode(part).decode() for part in signature)
        chain.note(SIGNED, now_s, {"certificate": certificate, "signature": said})


def problem_of(page: Page, check: CheckSaid) -> str:
    """Return why a page's signature is not that of its writer; empty for a valid signature."""
    if not page.lines:
        return "it has no records"
    found = parsed(page.lines[-1])
    if found.get("kind") != SIGNED:
        return "nobody has signed it"
    try:
        signature = Signature(base64.b64decode(found["certificate"]), base64.b64decode(found["signature"]))
    except (LookupError, TypeError, ValueError):
        return "its signature is damaged"
    before = page.previous
    for line in page.lines[:-1]:
        before = chained(before, line.rpartition(HASH_KEY)[0])
    try:
        who = check(*signature, _text(page.writer, page.run, page.first + len(page.lines) - 1, before))
    except UnprovenError as error:
        return str(error)
    role, _, name = page.writer.partition("/")
    return "" if who.name in NAMES.get(role, (name or role,)) else f"{who.name} has signed it, and not {name or role}"


def _text(writer: str, run: int, number: int, before: str) -> bytes:
    """Return the signed text. number: that of the record with the signature. before: the chain's hash before it."""
    return SIGNED_AS + f"{writer}\n{run}\n{number}\n{before}".encode(errors="surrogateescape")
