"""The lab of a checkout: benchmarks, reproductions of papers and training, which no installation contains.

No other module of the package may import the lab. `python -m ros2_rfm_serving.checkout MODULE ARGUMENTS` runs a module of the lab,
or of the package, in a process of its own.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

from ros2_rfm_serving.errors import ConfigurationError, RfmError
from ros2_rfm_serving.shipped import PACKAGE

LAB = "lab"
MANIFEST, NAME = "package.xml", "<name>rfm_serving</name>"


def find_checkout(package: Path = PACKAGE, prefix: Path | None = None, current: Path | None = None) -> Path:
    """Return the root of a checkout of the repository.

    The first one found counts: the folder that the package was imported from; the folders around its Python environment, which
    `make install` creates in the checkout; the current folder and the folders around it.

    Args:
        package: folder of the package.
        prefix: root of the Python environment; by default that of this process.
        current: current folder; by default that of this process.

    Raises:
        ConfigurationError: none of these folders is a checkout.
    """
    environment, here = prefix or Path(sys.prefix), current or _current_folder()
    for folder in (package.parent, *environment.parents, here, *here.parents):
        if is_checkout(folder):
            return folder
    fix = "clone the repository and call the command in it: cd rfm_serving; rfm ..."
    problem = "this verb needs a checkout of the repository: benchmarks, reproductions and training are not part of an installation"
    raise ConfigurationError(problem, fix=fix)


def is_checkout(folder: Path) -> bool:
    """Return whether the folder is the root of a checkout that has the lab."""
    try:
        return (folder / LAB / "__init__.py").is_file() and NAME in (folder / MANIFEST).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def is_in_lab(module: str) -> bool:
    """Return whether the dotted name is that of a module of the lab."""
    return module.partition(".")[0] == LAB


def use_lab() -> None:
    """Make the modules of the lab importable, after everything that is installed.

    Raises:
        ConfigurationError: there is no checkout, or another package is called `lab`.
    """
    root = find_checkout()
    if str(root) not in sys.path:
        sys.path.append(str(root))
    found = importlib.util.find_spec(LAB)
    if found is None or found.origin is None or Path(found.origin).resolve().parents[1] != root.resolve():
        other = found.origin if found else "nothing"
        raise ConfigurationError(f"`{LAB}` is not the lab of {root} but {other}", fix="uninstall the other package of this name")


def main() -> None:
    """Run the module that the command line names, as `python -m` does."""
    sys.argv = sys.argv[1:]
    module = sys.argv[0]
    try:
        if is_in_lab(module):
            use_lab()
    except RfmError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except OSError:  # the folder was removed
        return Path("/")


if __name__ == "__main__":
    main()
