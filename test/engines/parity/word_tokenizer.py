"""A tokenizer of whole words, with the special tokens of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def word_tokenizer(words: str, special: Sequence[str], size: int = 64) -> Any:
    """Of whole words; special tokens have the last of `size` numbers."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    known = ["<unk>", *dict.fromkeys(words.split())]
    filled = [*known, *(f"<{i}>" for i in range(size - len(known) - len(special))), *special]
    assert len(filled) == size
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(filled)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return tokenizer
