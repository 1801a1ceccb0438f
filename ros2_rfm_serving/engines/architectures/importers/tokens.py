"""Numbers of special tokens, as `tokenizer.json` has them."""

from __future__ import annotations

import json

from ros2_rfm_serving.errors import ModelError


def token_id(tokenizer: str, token: str) -> int:
    """tokenizer: what its file says. Raises: `ModelError`."""
    try:
        added = {each["content"]: int(each["id"]) for each in json.loads(tokenizer).get("added_tokens", [])}
        return added[token]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ModelError(f"tokenizer.json: no token is {token}; it is of another model") from None
