"""What is compiled is found only as long as it is of this very source, and nobody outside extends it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from ros2_rfm_serving import compiled
from ros2_rfm_serving.cli import start
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate import compiling
from ros2_rfm_serving.operate.doctor.checks import compiled_finding
from ros2_rfm_serving.operate.doctor.finding import Verdict

ABROAD = ("audit",)
"""Rooms that extend them where nothing is compiled."""
FOUND = """
import sys
from ros2_rfm_serving import compiled
used = compiled.use()
import ros2_rfm_serving.robot.motion.pace as pace
print(used, getattr(pace, "__file__", ""))
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(compiled.SWITCH, raising=False)
    return compiled.home()


def names_of(module: ast.Module) -> dict[str, str]:
    """Name -> "module.name" of ours, for what it imports."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(compiled.PACKAGE.name)
        for alias in node.names
    }


def test_each_is_there_and_none_is_named_twice() -> None:
    files = [compiled.PACKAGE.joinpath(*name.split(".")).with_suffix(".py") for name in compiled.MODULES]
    assert len(set(files)) == len(files) and set(files) <= set(compiled.sources())


def test_no_class_of_theirs_is_extended_where_nothing_is_compiled() -> None:
    """Python refuses to make an object of such a class."""
    native = {f"{compiled.PACKAGE.name}.{name}" for name in compiled.MODULES}
    extended = []
    for file in compiled.PACKAGE.rglob("*.py"):
        parts = file.relative_to(compiled.PACKAGE).with_suffix("").parts
        if ".".join(parts) in compiled.MODULES or parts[0] in ABROAD:
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        imported = names_of(tree)
        bases = [(node.name, ast.unparse(base)) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases]
        extended += [(file.name, name, base) for name, base in bases if imported.get(base, "").rpartition(".")[0] in native]
    assert extended == []


def test_another_source_is_another_folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    for name in ("errors.py", "robot/core.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("x = 1\n")
    monkeypatch.setattr(compiled, "PACKAGE", package)
    folders = [compiled.folder()]
    for name in ("errors.py", "robot/core.py"):
        (package / name).write_text("x = 2\n")
        folders.append(compiled.folder())
    monkeypatch.setattr(compiled, "SUFFIX", ".cpython-399.so")
    folders.append(compiled.folder())
    assert len(set(folders)) == 4


def found(switch: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", FOUND.replace("compiled.use()", f"compiled.use() if {switch!r} else False")],
        capture_output=True,
        text=True,
        check=False,
    )
    return (done.stdout or done.stderr.strip().splitlines()[-1]).split()


def test_what_lies_in_the_folder_comes_before_the_source(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found("use")[0] == "False" and found("use")[1].endswith("pace.py")
    made = compiled.folder() / compiled.PACKAGE.name / "robot" / "motion" / f"pace{compiled.SUFFIX}"
    made.parent.mkdir(parents=True)
    compiled.folder().chmod(0o700)
    made.write_bytes(b"no machine code")
    assert "ImportError:" in found("use") and str(made) in " ".join(found("use"))
    monkeypatch.setenv(compiled.SWITCH, "no")
    assert found("use")[0] == "False" and found("use")[1].endswith("pace.py")


def test_too_late_is_an_error_and_not_half_of_it(home: Path) -> None:
    import ros2_rfm_serving.robot.core  # noqa: F401

    assert not compiled.use() and not compiled.in_use()
    compiled.folder().mkdir(parents=True, mode=0o700)
    with pytest.raises(AssertionError, match=r"robot\.core"):
        compiled.use()
    assert not compiled.in_use()


@pytest.mark.parametrize(
    ("words", "virtual"),
    [
        (["simulate", "f.yaml"], True),
        (["bench", "simulation"], True),
        (["bench", "path"], False),
        (["up"], False),
        (["replay"], False),
    ],
)
def test_only_virtual_time_looks_for_it(words: list[str], virtual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(compiled, "use", lambda: asked.append(True) or True)
    monkeypatch.setattr("ros2_rfm_serving.cli.main.main", lambda: None)
    monkeypatch.setattr(sys, "argv", ["rfm", *words])
    start.main()
    assert asked == [True] * virtual


def test_without_what_compiles_it_says_how_to_get_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"mypyc is not installed.*\[compile\]"):
        compiling.compile_modules()


def built(source: Path, made: Path) -> None:
    made.mkdir(parents=True)


def test_what_decides_otherwise_or_fails_is_not_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_build", built)
    answers = iter(["one", "another"])
    monkeypatch.setattr(compiling, "_run", lambda *given: next(answers))
    with pytest.raises(ConfigurationError, match="does not report"):
        compiling.compile_modules()
    assert not list(home.iterdir())
    answers = iter(["one", "one"])
    assert compiling.compile_modules() == compiled.folder() and compiled.folder().is_dir()
    assert compiled_finding().verdict is Verdict.OK
    with pytest.raises(ConfigurationError, match=r"does not run\n.*boom"):
        monkeypatch.undo()
        compiling._run([sys.executable, "-c", "raise SystemExit('boom')"], "does not run", home.parent, {})


def test_the_doctor_says_whether_it_is_there(home: Path) -> None:
    finding = compiled_finding()
    assert finding.verdict is Verdict.OPTIONAL and "rfm compile" in finding.fix


def test_what_another_user_could_have_written_is_not_executed(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = compiled.folder()
    kept.mkdir(parents=True)
    for mode, own in ((0o700, True), (0o755, True), (0o770, False), (0o757, False)):
        kept.chmod(mode)
        assert compiled.is_own(kept) is own
    kept.chmod(0o777)
    assert not compiled.use() and compiled_finding().verdict is Verdict.OPTIONAL
    kept.chmod(0o700)
    kept.rename(tmp_path / "elsewhere")
    kept.symlink_to(tmp_path / "elsewhere")
    assert not compiled.is_own(kept)
    monkeypatch.setattr("os.geteuid", lambda: kept.lstat().st_uid + 1)
    assert not compiled.is_own(tmp_path / "elsewhere")


def test_what_is_being_checked_is_not_found_yet(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is interrupted then leaves nothing behind."""
    kept = compiled.folder()

    def interrupted(command: list[str], problem: str, where: Path, environment: dict[str, str]) -> str:
        assert not kept.exists()
        monkeypatch.setenv("XDG_CACHE_HOME", environment["XDG_CACHE_HOME"])
        assert compiled.is_own(compiled.folder()), "what is checked is what was compiled"
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling, "_build", built)
    monkeypatch.setattr(compiling, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compiling.compile_modules()
    assert not list(home.iterdir())


def test_two_at_once_keep_the_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, asked = compiled.folder(), list[None]()

    def meanwhile(*given: object) -> str:
        asked.append(None)
        if len(asked) == 2:
            (kept / "whole").mkdir(parents=True)
            kept.chmod(0o700)
        return "one"

    monkeypatch.setattr(compiling, "_build", built)
    monkeypatch.setattr(compiling, "_run", meanwhile)
    assert compiling.compile_modules() == kept and compiled.is_own(kept)
    rename = Path.rename

    def first(made: Path, target: Path) -> Path:
        if target == kept:
            (kept / "of another").mkdir(parents=True)
            kept.chmod(0o700)
        return rename(made, target)

    monkeypatch.setattr(Path, "rename", first)
    assert compiling.compile_modules() == kept and (kept / "of another").is_dir()


def test_where_nothing_can_be_kept_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigurationError, match=r"cannot be kept.*XDG_CACHE_HOME"):
        compiling.compile_modules()
