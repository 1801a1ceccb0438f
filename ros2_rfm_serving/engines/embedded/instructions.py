"""Instructions as token indices over a small closed vocabulary; words that did not occur in training are left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

PAD = 0


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def vocabulary(texts: Iterable[str]) -> tuple[str, ...]:
    """Return all words of `texts`, sorted; index 0 is padding, and index 1 is unused."""
    return ("<pad>", "<unknown>", *sorted({word for text in texts for word in words(text)}))


def encode(texts: Sequence[str], index: dict[str, int], max_words: int) -> npt.NDArray[np.int64]:
    """Return indices, [B, max_words], padded with `PAD`; longer instructions are cut."""
    tokens = np.full((len(texts), max_words), PAD, np.int64)
    for row, text in enumerate(texts):
        known = [index[word] for word in words(text) if word in index][:max_words]
        tokens[row, : len(known)] = known
    return tokens
