"""What test/conftest.py does for all tests: a run ends, and no test depends on those before it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUN = """
import sys
import pytest
from test import conftest

conftest.GRACE_S = 1.0
sys.exit(pytest.main(["test/unit/bad_tests.py", "-p", "no:cacheprovider", "--timeout", "1", "-k", sys.argv[1]]))
"""


def run_bad(repository: Path, name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RUN, name]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=200, check=False)


def test_a_test_that_hangs_while_it_holds_the_global_lock_ends_the_run_with_its_stack(repository: Path) -> None:
    done = run_bad(repository, "global_lock")
    assert done.returncode == 1 and "Timeout" in done.stderr, done.stdout + done.stderr
    assert "test_a_call_that_holds_the_global_lock_hangs" in done.stderr


def test_an_environment_variable_that_a_test_leaves_behind_is_named_and_reaches_no_other_test(repository: Path) -> None:
    done = run_bad(repository, "certificate")
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr
    assert "left the environment changed: RFM_SERVING_ENCLAVE" in done.stdout
