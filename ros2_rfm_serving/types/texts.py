"""Texts that processes report about themselves, and their comparison."""

from __future__ import annotations

import re

NUMBER = re.compile(r"(?<![A-Za-z0-9_])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+(?![A-Za-z0-9_]))?")
"""A number; the digits of a name, as in `server_1`, are not one."""


def without_numbers(text: str) -> str:
    """Return the text with `#` for each number: "readings are 9.0 s old" and "readings are 9.1 s old" report the same thing."""
    return NUMBER.sub("#", text)


MAX_CHARACTERS = 300


def shortened(text: str) -> str:
    """Return the text, or its beginning where it is long: other processes may have written parts of it."""
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 3]}..."
