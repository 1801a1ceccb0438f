"""Prints the requirements that pyproject.toml declares: the package's own, the named extras, and `build` for its build system's.

python scripts/requirements.py pyproject.toml torch dev build

With `--of`, what an installed distribution asks for, its extras included, without those that are named after it:

python scripts/requirements.py --of 'lerobot[smolvla]' torch wandb
"""

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib


def declared(file: str, extras: list[str]) -> list[str]:
    project = tomllib.loads(Path(file).read_text())
    wanted = list(project["project"]["dependencies"])
    for extra in extras:
        wanted += project["build-system"]["requires"] if extra == "build" else project["project"]["optional-dependencies"][extra]
    return wanted


def asked_by(distribution: Requirement, without: list[str]) -> Iterator[str]:
    for line in metadata.requires(distribution.name) or ():
        requirement = Requirement(line)
        marker, requirement.marker = requirement.marker, None
        if requirement.name in without or not any(
            marker is None or marker.evaluate({"extra": e}) for e in ("", *distribution.extras)
        ):
            continue
        if requirement.name == distribution.name:  # an extra that is made of others
            yield from asked_by(requirement, without)
        else:
            yield str(requirement)


if sys.argv[1] == "--of":
    wanted = sorted({*asked_by(Requirement(sys.argv[2]), sys.argv[3:])})
else:
    wanted = declared(sys.argv[1], sys.argv[2:])
print("\n".join(wanted))
