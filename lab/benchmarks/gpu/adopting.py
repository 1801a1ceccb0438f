"""Adoption of a measured profile for plans: of a GPU at full size, and without another profile of the same model."""

from __future__ import annotations

from pathlib import Path

from lab.benchmarks.gpu.machine import Machine
from lab.benchmarks.gpu.rows import replace
from ros2_rfm_serving.errors import ProfileError
from ros2_rfm_serving.profiles import read_rows


def adopt(out: Path, machine: Machine, folder: Path) -> Path:
    """Copy a profile. Raises: `ProfileError` if it is not from a GPU, or if its models have one on that GPU already."""
    file = out / "profiles" / machine.profile_name
    if not file.exists():
        raise ProfileError(f"{file}: is not there; measure it with `rfm bench gpu`")
    text, rows = file.read_text(encoding="utf-8"), read_rows(file)
    first = text.partition("\n")[0]
    toys = [row.model for row in rows if row.model.startswith("toy/") or row.gpu_type == "CPU"]
    if not machine.on_gpu or machine.size != "full" or toys or "size full" not in first or "device cuda" not in first:
        raise ProfileError(f"{file}: says {first.lstrip('# ')!r}; only a GPU at full size has a profile here")
    new = {(row.model, row.gpu_type) for row in rows}
    for other in sorted(folder.glob("*.csv")):
        both = sorted(new & {(row.model, row.gpu_type) for row in read_rows(other)}) if other.name != file.name else []
        if both:
            raise ProfileError(f"{other}: has {both[0][0]} on {both[0][1]} too; take its rows out first: a curve is of one source")
    target = folder / file.name
    try:
        replace(target, text)
    except OSError as error:
        raise ProfileError(f"{target}: cannot be written: {error.strerror}") from error
    return target
