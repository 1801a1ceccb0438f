"""Problems of a process beside what a status reports of its own part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ros2_rfm_serving.types.process_problems import (
    CERTIFICATE_WARNING,
    LOG_DISK_FULL,
    OWN_LEVEL,
    PREFIX,
    DiagnosticEntry,
    with_process_problems,
    without_process_problems,
)

KINDS = st.sampled_from([LOG_DISK_FULL, CERTIFICATE_WARNING, "x"])


@given(st.builds(DiagnosticEntry, st.integers(0, 3), st.text(), st.dictionaries(KINDS, st.text())), st.integers(0, 2))
def test_what_was_joined_is_separated_again(status: DiagnosticEntry, level: int) -> None:
    shown, message, values = with_process_problems(status, level)
    assert without_process_problems(shown, message, values) == status
    assert message.startswith(status.message) and all(text in message for text in status.problems.values())
    assert shown == (max(level, status.level) if status.problems else status.level)


@given(st.integers(0, 255), st.text(), st.dictionaries(st.sampled_from([OWN_LEVEL, f"{PREFIX}x", "y"]), st.text()))
def test_anybodys_values_are_read(level: int, message: str, values: dict[str, str]) -> None:
    status = without_process_problems(level, message, values)
    assert message.startswith(status.message)
