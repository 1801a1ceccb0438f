"""Command `rfm import`: the importer that recognises a checkpoint makes a bundle of it, with a card that names its origin."""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, cast

from pydantic import ValidationError
from safetensors import SafetensorError

from ros2_rfm_serving.engines.architectures import bundle
from ros2_rfm_serving.engines.architectures.importers.base import Imported, Importer, ImportOptions
from ros2_rfm_serving.engines.architectures.manifest import first_of
from ros2_rfm_serving.engines.lerobot_format import checkpoint_below
from ros2_rfm_serving.errors import ModelError

_HERE = "ros2_rfm_serving.engines.architectures.importers"
IMPORTERS = {
    "lerobot": f"{_HERE}.lerobot",
    "bitvla": f"{_HERE}.bitvla",
    "groot": f"{_HERE}.groot",
    "groot_n1_7": f"{_HERE}.groot_n1_7",
    "groot_n1_6": f"{_HERE}.groot_n1_6",
    "evo1": f"{_HERE}.evo1",
    "openpi": f"{_HERE}.openpi",
}
"""Importers in the order in which they are asked whether they recognise a folder."""
GROOTS_OF_PROCESSORS = frozenset({"groot_n1_6", "groot_n1_7"})
HEEDED = {
    "kind": frozenset(IMPORTERS) - {"lerobot"},
    "state_size": frozenset({"openpi"}),
    "state_words": frozenset({"lerobot"}),
    "raw_units": frozenset({"lerobot"}),
    "release": frozenset({"lerobot"}),
    "assets": frozenset({"openpi"}),
    "chunk_length": frozenset({"openpi"}),
    "discrete_state_input": frozenset({"openpi"}),
    "state_keys": frozenset({"groot"}),
    "action_keys": frozenset({"groot"}),
}
"""Importers that read an option, for options that only some of them read; all others refuse them."""
CARD = "MODEL_CARD.md"
MALFORMED = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""Errors of values with an unexpected type; an importer names file and key itself where it can."""


class ImportedBundle(NamedTuple):
    importer: str
    imported: Imported
    content_hash: str
    source_hash: str


def import_checkpoint(source: Path, target: Path, wishes: ImportOptions, importer: str = "") -> ImportedBundle:
    """Import a checkpoint. Raises: `ModelError`; no files are left behind then."""
    if not source.is_dir():
        raise ModelError(f"{source}: no folder; give the one with the checkpoint's config.json and safetensors")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ModelError(f"{target}: is there already; name another folder, or remove it")
    name = importer or _recognised(source)
    if name not in IMPORTERS:
        raise ModelError(f"no importer is named {name!r}; there are {', '.join(IMPORTERS)}")
    require_heeded(name, wishes)
    imported, licence = _read(name, source, wishes), wishes.licence or licence_of(source)
    if wishes.relative and not imported.manifest.processing.relative:
        raise ModelError(f"--relative: {name!r} checkpoints say themselves which actions are relative to the state; this one: none")
    weights = dict(imported.weights)
    bundle.require_whole(target, imported.manifest, weights, imported.tokenizer)
    source_hash = hash_of(source, imported.files)
    with staged(target) as folder:
        content_hash = bundle.save(folder, imported.manifest, weights, imported.tokenizer)
        (folder / CARD).write_text(_card(name, source, licence, imported, source_hash, content_hash), encoding="utf-8")
    return ImportedBundle(name, imported, content_hash, source_hash)


def require_heeded(importer: str, wishes: ImportOptions) -> None:
    """Check that the importer reads all options that were given. Raises: `ModelError` for one that it would not read."""
    for field, importers in HEEDED.items():
        if importer in importers or getattr(wishes, field) == getattr(ImportOptions(), field):
            continue
        option = f"--{field.replace('_', '-')}"
        own_keys = importer in GROOTS_OF_PROCESSORS and field in ("state_keys", "action_keys")
        why = "their processor_config.json says its keys and their order" if own_keys else "leave it out"
        raise ModelError(f"{option}: {importer!r} checkpoints have no use for it, {', '.join(sorted(importers))} alone: {why}")


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Create a hidden folder beside the target, which becomes the target when all files are written.

    So a process that is killed leaves no incomplete bundle there. Raises: `ModelError` if the folder cannot be written.
    """
    folder = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        folder.mkdir(parents=True)
        yield folder
        folder.rename(target)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{target}: cannot be written: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read(name: str, source: Path, wishes: ImportOptions) -> Imported:
    """Read a checkpoint. Raises: `ModelError`, whatever the checkpoint contains."""
    try:
        return cast(Importer, import_module(IMPORTERS[name])).read(source, wishes)
    except ValidationError as error:
        raise ModelError(f"{source}: not as {name!r} saves it: {error.title}.{first_of(error)}") from error
    except MALFORMED as error:
        raise ModelError(f"{source}: not as {name!r} saves it: {type(error).__name__}: {error}") from error


def licence_of(folder: Path) -> str:
    """Return the licence in the front matter of the checkpoint's own card."""
    card = folder / "README.md"
    lines = card.read_text(encoding="utf-8", errors="replace").splitlines() if card.is_file() else []
    matter = lines[1 : lines.index("---", 1)] if lines[:1] == ["---"] and "---" in lines[1:] else []
    told = (line.partition(":")[2].strip() for line in matter if line.startswith("license:"))
    return next((name for name in told if name), "unknown")


def hash_of(folder: Path, files: Iterable[Path]) -> str:
    """Return the SHA-256, hex, over names and contents of files."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(folder) if file.is_relative_to(folder) else file.name}\n".encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()


def _recognised(source: Path) -> str:
    for name, module in IMPORTERS.items():
        if cast(Importer, import_module(module)).recognises(source):
            return name
    if below := checkpoint_below(source):
        raise ModelError(f"{source}: is the folder of a training run: give {below}")
    has = ", ".join(sorted(file.name for file in source.iterdir())[:8]) or "nothing"
    known = ", ".join(IMPORTERS)
    raise ModelError(f"{source}: no checkpoint that an importer recognises ({known}); it has {has}; say which with --as")


def _card(importer: str, source: Path, licence: str, imported: Imported, source_hash: str, content_hash: str) -> str:
    manifest, promise = imported.manifest, imported.manifest.contract
    delay = promise.max_inference_delay_steps
    counted = [name for name, source in zip(promise.action_names, manifest.processing.relative, strict=False) if source is not None]
    relative = f"; relative to the state: {', '.join(counted)}" if counted else ""
    continues = f"continues prefixes of up to {delay} steps" if delay else "continues no prefixes"
    notes = "".join(f"- {note}\n" for note in imported.notes)
    licence, name = _on_one_line(licence), _on_one_line(source.resolve().name)
    return f"""---
license: {licence}
architecture: {manifest.architecture}
source: {name}
source_format: {importer}
source_sha256: {source_hash}
bundle_sha256: {content_hash}
---
# {name}

Imported from a {importer} checkpoint: {", ".join(sorted(file.name for file in imported.files))}. Nothing in it was run.

Architecture: {manifest.architecture}; actions: {", ".join(promise.action_names)}; cameras: {", ".join(promise.cameras) or "none"};
state: {promise.state_size} columns; {manifest.sampling.num_steps} solver steps; {continues}{relative}.

{notes}"""


def _on_one_line(text: str) -> str:
    """Return a text on one line: a folder's name may have line ends, which would become keys of a card."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
