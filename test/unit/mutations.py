"""Valid bytes, spoilt: what hypothesis draws for the readers of bytes, messages and files."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import numpy as np
from hypothesis import strategies as st

LYING_LENGTHS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


@st.composite
def damaged(draw: st.DrawFn, valid: list[bytes]) -> bytes:
    """One of `valid` after up to three accidents."""
    data = bytearray(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.sampled_from(["flip", "byte", "cut", "length", "repeat", "splice", "remove"]))
        if kind == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "byte" and data:
            data[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del data[at:]
        elif kind == "length":
            order = draw(st.sampled_from("<>"))
            data[at : at + 4] = struct.pack(f"{order}I", draw(st.sampled_from(LYING_LENGTHS)))
        elif kind == "repeat":
            data[at:at] = data[at : at + draw(st.integers(1, 40))] * draw(st.integers(1, 50))
        elif kind == "splice":
            other = draw(st.sampled_from(valid))
            data[at:] = other[draw(st.integers(0, len(other))) :]
        else:
            del data[at : at + draw(st.integers(1, 40))]
    return bytes(data)


def duplicated(items: list[tuple[Any, Any]], pack: Any) -> bytes:
    """A msgpack map as it stands: keys may be there twice."""
    return bytes(msgpack.Packer().pack_map_header(len(items))) + b"".join(pack(part) for item in items for part in item)


def array(dtype: Any, shape: Any, data: Any) -> dict[bytes, Any]:
    """As openpi's clients pack one, true or not."""
    return {b"__ndarray__": True, b"dtype": dtype, b"shape": shape, b"data": data}


NUMBERS = st.one_of(st.integers(-(2**63), 2**64 - 1), st.floats(), st.booleans())
DTYPES = st.sampled_from(
    ["<f4", "<f8", "|u1", "<i8", "|O", ">f4", "<c8", "|V4", "<U4", "", "float32", "<f16", 7, None, [["a", "<f4"]]]
)
SHAPES = st.one_of(
    st.lists(st.one_of(st.integers(-1, 5), st.sampled_from([1 << 31, 1 << 62])), max_size=4), st.just([1] * 70), st.just("3")
)
LIES = st.builds(array, DTYPES, SHAPES, st.one_of(st.binary(max_size=40), st.text(max_size=3), st.none()))
TRUTHS = st.builds(
    lambda dtype, shape: array(np.dtype(dtype).str, list(shape), np.ones(shape, dtype).tobytes()),
    st.sampled_from(["float32", "float64", "uint8", "int64", "bool", "float16"]),
    st.lists(st.integers(0, 4), max_size=4),
)
LEAVES = st.one_of(NUMBERS, st.none(), st.text(max_size=8), st.binary(max_size=20), LIES, TRUTHS)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text("ab/.", max_size=4), inner, max_size=3)),
    max_leaves=8,
)
"""Whatever a client may put into a map."""
