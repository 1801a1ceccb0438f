"""Known vulnerabilities and licences of everything that an installation brings: scripts/audit.py PYPROJECT PIP_AUDIT [--strict]

Of the dependencies of the package and of all its extras but those for its development, as far as they are installed beside this
Python. PIP_AUDIT: the program; it asks the package index's advisories, and who cannot be asked says so: with --strict that is a
failure, too. Exit code 1: a vulnerability is known, or nobody says under which licence something is.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

LEFT_OUT = ("dev", "docs", "fuzz", "demo")
"""Extras of development, and one that is made of others."""
STATED = re.compile(r"^[^\n]{1,70}$")
"""A licence's name; not its whole text."""


def main(pyproject: str, pip_audit: str, *options: str) -> int:
    brought = dict(sorted(distributions(pyproject).items()))
    licences = {name: licence(found) for name, found in brought.items()}
    for name, found in brought.items():
        print(f"{name} {found.version}: {licences[name] or 'SAYS NOTHING'}")
    site = {str(found.locate_file("")) for found in brought.values()}
    vulnerable = vulnerabilities(pip_audit, sorted(site), brought, "--strict" in options)
    return int(vulnerable or not all(licences.values()))


def distributions(pyproject: str) -> dict[str, metadata.Distribution]:
    """By name: what the project needs, what that needs, and so on."""
    project = tomllib.loads(Path(pyproject).read_text(encoding="utf-8"))["project"]
    extras = project.get("optional-dependencies", {})
    asked = [*project["dependencies"], *(line for extra in extras if extra not in LEFT_OUT for line in extras[extra])]
    found: dict[str, metadata.Distribution] = {}
    seen: set[str] = set()
    for requirement in map(Requirement, asked):
        walk(requirement, found, seen)
    return found


def walk(requirement: Requirement, found: dict[str, metadata.Distribution], seen: set[str]) -> None:
    key = f"{requirement.name}[{','.join(sorted(requirement.extras))}]"
    if key in seen:
        return
    seen.add(key)
    try:
        distribution = metadata.distribution(requirement.name)
    except metadata.PackageNotFoundError:
        return  # of an extra that is not installed here
    found[distribution.metadata["Name"]] = distribution
    for line in distribution.requires or ():
        needed = Requirement(line)
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)):
            walk(needed, found, seen)


def licence(distribution: metadata.Distribution) -> str:
    """In the words that are most exact; empty: nothing is said."""
    return next((text for text in stated(distribution) if text and text.upper() not in ("UNKNOWN", "TODO")), "")


def stated(distribution: metadata.Distribution) -> Iterator[str]:
    """An SPDX expression, classifiers, a field, what ROS packages say in their package.xml, the first line of a file."""
    about = distribution.metadata
    yield about.get("License-Expression", "")
    yield from (text for text in about.get_all("License") or () if STATED.match(text))
    classifiers = [line for line in about.get_all("Classifier") or () if line.startswith("License ::")]
    yield ", ".join(line.rpartition(" :: ")[2] for line in classifiers if not line.endswith("OSI Approved"))
    for file in distribution.files or ():
        if file.name == "package.xml":
            yield ", ".join(re.findall(r"<license[^>]*>([^<]+)</license>", file.read_text(encoding="utf-8")))
    named = {Path(name).name for name in about.get_all("License-File") or ()}
    for file in distribution.files or ():
        if file.name in named:
            yield next((line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()), "")[:70]


def vulnerabilities(pip_audit: str, site: list[str], brought: dict[str, metadata.Distribution], strict: bool) -> bool:
    """Whether there are any, or, if `strict`, nobody knows of something."""
    paths = [word for folder in site for word in ("--path", folder)]
    command = [pip_audit, *paths, "-f", "json", "--progress-spinner", "off"]
    asked = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    try:
        answers = {one["name"].lower().replace("_", "-"): one for one in json.loads(asked.stdout)["dependencies"]}
    except (ValueError, KeyError):
        answers = {}
    mine = [answers.get(name.lower().replace("_", "-"), {}) for name in brought]
    known = [one for one in mine if "vulns" in one]
    for one in known:
        for found in one["vulns"]:
            fixed = ", ".join(found.get("fix_versions", ())) or "no version"
            print(f"VULNERABLE: {one['name']} {one['version']}: {found['id']}, mended in {fixed}")
    print(
        f"advisories were asked about {len(known)} of {len(mine)} distributions" + ("" if known else ": NOTHING IS KNOWN OF THEM")
    )
    return any(one["vulns"] for one in known) or (strict and len(known) < len(mine))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
