"""Text of the written files, and the writing: the same descriptor gives the same bytes, and no user's file is lost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from ros2_rfm_serving.errors import ConfigurationError

Document = dict[str, Any]
WIDTH = 160
NO_TEXT_TO_OTHERS = re.compile(r"[-+.]?\d.*|[yn]", re.IGNORECASE)
"""Text that readers of YAML 1.2, and those written in Go, take for a number or a bool, and PyYAML for a string: 1e3, 0o17, y."""


class _Dumper(yaml.SafeDumper):
    """YAML dumper without anchors; multi-line texts stay as they are, and all others are quoted where necessary."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=_style(text))


def _style(text: str) -> str | None:
    """Return the style of a text; None: PyYAML's choice."""
    if not text.replace("\n", "").replace("\t", "").isprintable():
        return '"'
    return "|" if "\n" in text else "'" if NO_TEXT_TO_OTHERS.fullmatch(text) else None


_Dumper.add_representer(str, _text)


def dump(documents: Iterable[Document], about: str) -> str:
    """Return documents as YAML. about: the first line, a comment."""
    text = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=WIDTH, allow_unicode=True)
    return f"# {about}\n{text}"


MAX_NAME_CHARACTERS = 45
"""Maximum length of a name: 63 for a pod or a label, less what Kubernetes and this package add to it."""


def slug(name: str) -> str:
    """Return a name that is valid in Kubernetes (RFC 1123)."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:MAX_NAME_CHARACTERS].strip("-")


def distinct(names: Iterable[str], file: str) -> None:
    """Raise `ConfigurationError` when two processes would have one name."""
    first: dict[str, str] = {}
    for name in names:
        if len(name) > MAX_NAME_CHARACTERS:
            raise ConfigurationError(f"{name!r} is too long a name there", file=file, fix="rename the task")
        other = first.setdefault(slug(name), name)
        if other != name:
            raise ConfigurationError(f"{other!r} and {name!r} would both be {slug(name)!r} there", file=file, fix="rename the task")


def distinct_types(gpu_types: Iterable[str], file: str) -> list[str]:
    """Return each GPU type once.
    Raises: `ConfigurationError` when two types would have the same node label, which would place servers on the wrong GPU."""
    first: dict[str, str] = {}
    for gpu_type in gpu_types:
        if not slug(gpu_type):
            fix = "name it in letters and digits"
            raise ConfigurationError(f"GPU type {gpu_type!r} makes no label", file=file, key="server_cluster.gpu_type", fix=fix)
        other = first.setdefault(slug(gpu_type), gpu_type)
        if other != gpu_type:
            problem = f"GPU types {other!r} and {gpu_type!r} would both be the label {slug(gpu_type)!r} of nodes"
            raise ConfigurationError(problem, file=file, key="server_cluster.gpu_type", fix="name one of them otherwise")
    return list(first.values())


def write(folder: Path, files: Mapping[str, str], *, force: bool) -> list[str]:
    """Write files, and return warnings.

    Existing files with the same text are left alone. The others are written to a temporary folder first, and moved into place
    when all of them are written: when the disk is full nothing has changed. Raises: `ConfigurationError`, before any file is in
    place, when one exists with another text (unless `force`), or cannot be written."""
    if not force and (other := next((name for name, text in files.items() if _differs(folder / name, text)), "")):
        raise ConfigurationError(
            "is there already, and says something else", file=str(folder / other), fix="--force, or another folder"
        )
    try:
        changed = {name: text for name, text in files.items() if not _says(folder / name, text)}
        within = folder if folder.exists() else folder.parent  # on the same file system
        within.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".rfm_deploy.", dir=within) as beside:
            _fill(Path(beside, "new"), changed)
            _put_in_place(Path(beside, "new"), folder, changed)
    except OSError as error:
        raise ConfigurationError(
            f"cannot be written: {error.strerror}", file=str(error.filename or folder), fix="choose another folder"
        ) from None
    ours = sorted({name.partition("/")[0] for name in files if "/" in name})
    left = [file for below in ours for file in sorted((folder / below).rglob("*")) if file.is_file()]
    extra = [file for file in left if str(file.relative_to(folder)) not in files]
    return [f"{file} is not of this factory: remove it if an earlier `rfm deploy` wrote it" for file in extra]


def _fill(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def _put_in_place(new: Path, folder: Path, names: Iterable[str]) -> None:
    """Move the whole folder at once; where it exists, every file is completely the old or the new one at any time."""
    if not folder.exists():
        new.rename(folder)
        return
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (new / name).replace(folder / name)


def _says(file: Path, text: str) -> bool:
    return file.exists() and not _differs(file, text)


def _differs(file: Path, text: str) -> bool:
    try:
        return file.exists() and (not file.is_file() or file.read_bytes() != text.encode())
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", file=str(file), fix="choose another folder") from None


def open_to_readers(folder: Path, names: Iterable[str]) -> None:
    """Make the files readable, whatever the writer's umask: units and containers read them as other users. They have no secret."""
    files = {Path(name) for name in names}
    modes = dict.fromkeys(files, 0o644) | {parent: 0o755 for file in files for parent in file.parents if parent.name}
    for path, mode in modes.items():
        with suppress(PermissionError):  # another user's, which had the same text already
            (folder / path).chmod(mode)
