"""Description, verification and comparison of bundles, for `rfm bundle`. `config.json` determines the kind of a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ros2_rfm_serving.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

CARD = "MODEL_CARD.md"
MOST_NAMED = 10


def described(folder: Path) -> dict[str, Any]:
    """Return the description of a bundle. Raises: `ModelError`."""
    from safetensors import SafetensorError, safe_open

    from ros2_rfm_serving.engines.embedded.bundle import WEIGHTS, content_hash, read_config
    from ros2_rfm_serving.engines.weights_header import check_header

    config, parameters, dtypes = read_config(folder), 0, set[str]()
    try:
        check_header(folder / WEIGHTS)
        with safe_open(folder / WEIGHTS, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (no mapping)
                part = tensors.get_slice(name)
                dtypes.add(str(part.get_dtype()))
                parameters += _product(part.get_shape())
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder / WEIGHTS}: cannot be read: {error}") from error
    return {
        "kind": config.get("architecture", config.get("kind")),
        "parameters": parameters,
        "dtypes": sorted(dtypes),
        "bytes": sum(file.stat().st_size for file in folder.iterdir() if file.is_file()),
        "hash": content_hash(folder),
        "card": card_of(folder),
        **{key: value for key, value in config.items() if key not in ("kind", "architecture")},
    }


def card_of(folder: Path) -> dict[str, str]:
    """Return the front matter of the bundle's card: licence, source and hashes; empty without a card."""
    file = folder / CARD
    if not file.is_file():
        return {}
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    if not lines or lines[0] != "---" or "---" not in lines[1:]:
        return {}
    pairs = (line.partition(":") for line in lines[1 : lines.index("---", 1)])
    return {key.strip(): value.strip() for key, _, value in pairs if value}


def verified(folder: Path) -> list[str]:
    """Verify a bundle: load it, run it once, compare it with its reference and its card. Return descriptions of the problems."""
    from ros2_rfm_serving.engines.bundles import load_bundle
    from ros2_rfm_serving.engines.embedded.bundle import content_hash, read_config
    from ros2_rfm_serving.engines.warmup import warm_up

    try:
        engine = load_bundle(folder.name, folder)
        warm_up(engine, 1)
        wrong = [
            f"{check.block} is off by {check.error:.2g}, it may be by {check.tolerance:.2g}"
            for check in engine.check_parity()
            if not check.passes
        ]
    except ModelError as error:
        return [str(error)]
    except Exception as error:  # any error of a network with foreign sizes
        return [f"{folder}: {type(error).__name__}: {error}"]
    saved, told = content_hash(folder), card_of(folder).get("bundle_sha256", "")
    if not told and read_config(folder).get("kind") == "architecture":
        wrong.append(f"{folder / CARD}: no bundle_sha256, so that nothing says whether the files were changed; import it again")
    if told and told != saved:
        wrong.append(f"{folder / CARD}: bundle_sha256 is {told[:12]}..., the files have {saved[:12]}...: one of them was changed")
    return wrong


def differences(one: Path, other: Path) -> Iterator[str]:
    """Yield the differences of two bundles, one per line, in the form "one -> other". Raises: `ModelError`."""
    from ros2_rfm_serving.engines.embedded.bundle import PROCESSOR_FILES, read_config, read_weights

    yield from _keys(read_config(one), read_config(other), "")
    for name in PROCESSOR_FILES:
        texts = [(folder / name).read_bytes() if (folder / name).is_file() else b"" for folder in (one, other)]
        if texts[0] != texts[1]:
            yield f"{name}: differs"
    yield from _weights(read_weights(one), read_weights(other))


def _keys(one: Any, other: Any, at: str) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from _keys(one.get(key), other.get(key), f"{at}.{key}" if at else str(key))
    elif one != other:
        yield f"config.json: {at}: {_short(one)} -> {_short(other)}"


def _weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> Iterator[str]:
    for what, names in (("only in the first", one.keys() - other.keys()), ("only in the second", other.keys() - one.keys())):
        if names:
            yield f"weights: {len(names)} {what}: {', '.join(sorted(names)[:MOST_NAMED])}"
    for name in sorted(one.keys() & other.keys()):
        a, b = one[name], other[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            yield f"weights: {name}: {list(a.shape)} {a.dtype} -> {list(b.shape)} {b.dtype}"
        elif not a.equal(b):
            yield f"weights: {name}: up to {float((a.double() - b.double()).abs().max()):.3g} apart"


def _short(value: Any) -> str:
    words = repr(value)
    return words if len(words) <= 60 else f"{words[:57]}..."


def _product(sizes: list[int]) -> int:
    number = 1
    for size in sizes:
        number *= size
    return number
