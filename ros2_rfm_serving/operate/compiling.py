"""Implementation of `rfm compile`: mypyc, a C compiler, and a factory whose decisions must not differ from interpreted code."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ros2_rfm_serving import compiled
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.shipped import shipped

EXTRA = "pip install 'ros2-rfm-serving[compile]', and a C compiler (apt-get install gcc)"
OPTIONS = ("--ignore-missing-imports", "--no-error-summary", "--config-file=")
TRIAL = ("--robots", "12", "--seconds", "12", "--crash", "server_1@3", "--network", "latency=5,jitter=3,loss=0.02", "--json")
"""Arguments of the simulated factory."""


def compile_modules() -> Path:
    """Compile the modules in `compiled.MODULES`, and store them where `compiled.use` finds them.
    Raises: `ConfigurationError` when there is no compiler, when compilation fails, or when the result decides differently."""
    for needed in ("mypyc", "setuptools"):
        if importlib.util.find_spec(needed) is None:
            raise ConfigurationError(f"{needed} is not installed", key="compile", fix=EXTRA)
    home, kept = compiled.home(), compiled.folder()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home) as name:
            cache = Path(name) / "cache"
            made = cache / home.relative_to(home.parents[1]) / kept.name
            _build(Path(name) / "source", made)
            made.chmod(0o700)
            _check(cache)
            _keep(made, kept, Path(name) / "before")
    except OSError as error:
        raise ConfigurationError(f"cannot be kept: {error}", key="compile", fix="name another folder in XDG_CACHE_HOME") from None
    return kept


def _keep(made: Path, kept: Path, before: Path) -> None:
    """Move the checked result into place at once: other processes find this one, the previous one, or none."""
    if os.path.lexists(kept):
        kept.rename(before)
    try:
        made.rename(kept)
    except OSError:
        if not compiled.is_own(kept):
            raise
        # another `rfm compile` of the same source was first


def _build(source: Path, made: Path) -> None:
    """Compile a copy of the package. source: a folder for the copy, because mypyc writes beside the files that it reads."""
    shutil.copytree(compiled.PACKAGE, source / compiled.PACKAGE.name, ignore=_all_but_python)
    files = [str(Path(compiled.PACKAGE.name, *name.split(".")).with_suffix(".py")) for name in compiled.MODULES]
    environment = {**os.environ, "MYPYC_MULTI_FILE": "1", "MYPYC_DEBUG_LEVEL": "0"}
    _run([sys.executable, "-m", "mypyc", *OPTIONS, *files], "cannot be compiled", source, environment)
    for file in [*source.glob(f"*{compiled.SUFFIX}"), *source.glob(f"{compiled.PACKAGE.name}/**/*{compiled.SUFFIX}")]:
        target = made / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target)


def _all_but_python(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith((".py", ".pyi", "py.typed")) and not Path(folder, name).is_dir()]


def _check(cache: Path) -> None:
    """Check the modules in this cache.
    Raises: `ConfigurationError` unless a simulated factory reports the same to the last digit as when it is interpreted."""
    command = [sys.executable, "-m", f"{compiled.PACKAGE.name}.cli", "simulate", str(shipped("config", "rosa", "p4.yaml")), *TRIAL]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    told = [
        _run(command, "does not run", compiled.PACKAGE.parent, {**environment, compiled.SWITCH: switch}) for switch in ("yes", "no")
    ]
    if told[0] != told[1]:
        problem = "a factory compiled does not report what it does when it is interpreted"
        raise ConfigurationError(problem, key="compile", fix="please report it; virtual time stays interpreted")


def _run(command: list[str], problem: str, where: Path, environment: dict[str, str]) -> str:
    """Run a command and return its output. Raises: `ConfigurationError` with the end of the output."""
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()[-5:]
        raise ConfigurationError("\n".join([problem, *said]), key="compile", fix=EXTRA)
    return done.stdout
