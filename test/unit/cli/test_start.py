"""Where `rfm` begins, and ends when it is told to before it has begun."""

from __future__ import annotations

import sys
import types

import pytest

from ros2_rfm_serving.cli import start


def test_ctrl_c_before_a_verb_listens_for_it_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed() -> None:
        raise KeyboardInterrupt

    module = types.ModuleType("main")
    module.main = pressed  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ros2_rfm_serving.cli.main", module)
    monkeypatch.setattr(sys, "argv", ["rfm", "up"])
    with pytest.raises(SystemExit) as ended:
        start.main()
    assert ended.value.code == start.INTERRUPTED
