"""Entry point of `rfm`. `rfm doctor` works whatever is missing; every other verb that cannot start refers the user to it."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""Exit code as in a shell: 128 + SIGINT."""
VIRTUAL = (["simulate"], ["bench", "simulation"])
"""Verbs that run virtual time alone: compiled modules (`rfm compile`) have to be found before they are imported."""


def main() -> None:
    try:
        _main()
    except KeyboardInterrupt:  # during imports, or before a verb handles it
        raise SystemExit(INTERRUPTED) from None


def _main() -> None:
    if sys.argv[1:2] == ["doctor"]:
        _doctor()
        return
    if any(sys.argv[1 : 1 + len(verb)] == verb for verb in VIRTUAL):
        from ros2_rfm_serving import compiled

        compiled.use()
    try:
        from ros2_rfm_serving.cli.main import main as rfm

        rfm()  # it imports the verb
    except ImportError as error:
        print(f"error: {error}; `rfm doctor` says what is missing and how to get it", file=sys.stderr)
        raise SystemExit(2) from None


def _doctor() -> None:
    from ros2_rfm_serving.errors import RfmError

    try:
        import typer

        from ros2_rfm_serving.cli.doctor import doctor

        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command("doctor")(doctor)
        app(sys.argv[2:], prog_name="rfm doctor")
    except RfmError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except ImportError:  # even the modules for options and tables are missing
        _plain_doctor()


def _plain_doctor() -> None:
    from ros2_rfm_serving.operate.doctor.checks import findings
    from ros2_rfm_serving.operate.doctor.finding import Verdict

    found = list(findings())
    for finding in found:
        cures = [cure for cure in (finding.fix, finding.fix_in_workspace) if cure and finding.verdict is not Verdict.OK]
        print(f"{finding.part}: {finding.verdict.value}: {finding.found}", *cures, sep="\n    ")
    if any(finding.verdict is Verdict.MISSING for finding in found):
        raise SystemExit(1)
