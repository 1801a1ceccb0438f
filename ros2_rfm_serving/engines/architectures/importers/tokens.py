"""Numbers of special tokens in `tokenizer.json`."""

from __future__ import annotations

import json

from ros2_rfm_serving.errors import ModelError


def token_id(tokenizer: str, token: str) -> int:
    """Return the number of a token. tokenizer: content of the file. Raises: `ModelError` if there is no such token."""
    try:
        added = {each["content"]: int(each["id"]) for each in json.loads(tokenizer).get("added_tokens", [])}
        return added[token]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ModelError(f"tokenizer.json: no token is {token}; it is of another model") from None
