"""Exceptions that this project raises on purpose, with the code that each has on the wire.

    RfmError
    ├── ConfigurationError          100  a file of the user is wrong: names file, key path, value and fix
    ├── ProfileError                110  a latency profile is missing, malformed or asked outside its range
    ├── ScheduleError               120  no schedule can serve the declared factory
    │   └── PlannerError            121  the planner failed or ended: nothing is known of the factory
    ├── ModelError                  200  a model bundle cannot be loaded or does not fit its request
    │   ├── OutOfMemoryError        201  memory does not suffice for a batch; smaller ones may still run
    │   ├── EngineError             202  an engine raised an exception that it may not, or its answer breaks its contract
    │   └── UnusableAnswerError     203  a text model answered, but with no valid plan
    ├── ContractError               210  robot and server disagree (action names, cameras, state size, hash, version)
    ├── CapacityError               220  the server has no session left
    │   └── DrainingError           221  the server is about to end and accepts no new sessions
    ├── SessionError                230  unknown, closed or stale session
    ├── UnprovenError               240  the client has not shown its identity, or may not make this request
    ├── UnrecordableError           250  a decision core has a part that a recording cannot keep, such as a policy
    └── BadMessageError             300  a message with wrong shapes, non-finite numbers or a size over the limit

Codes follow navigation2's convention: 0 is success, each room has a hundred of them, and none is reused. 400 to 499 are outcomes of
tasks (`TaskOutcome`): results, not exceptions.
"""

from __future__ import annotations


class RfmError(Exception):
    """Base class of all errors; `code` is the value of `uint16 error_code` fields."""

    code: int = 1


class ConfigurationError(RfmError):
    """A user's file is wrong. `str()` reads `file:line: key.path: problem (value) - fix`."""

    code = 100

    def __init__(self, problem: str, *, file: str = "", line: int = 0, key: str = "", fix: str = "") -> None:
        self.problem, self.file, self.line, self.key, self.fix = problem, file, line, key, fix
        where = f"{file}:{line}: " if file and line else f"{file}: " if file else ""
        super().__init__(f"{where}{key + ': ' if key else ''}{problem}{'; ' + fix if fix else ''}")


class ProfileError(RfmError):
    code = 110


class ScheduleError(RfmError):
    code = 120


class PlannerError(ScheduleError):
    code = 121


class ModelError(RfmError):
    """A model cannot be loaded or used.

    `is_public`: the text names no path, address or secret, so that every process may read it in a server's status.
    """

    code = 200
    is_public = False


class OutOfMemoryError(ModelError):
    code = 201


class EngineError(ModelError):
    """The only error besides other model errors that can leave `engines/answers.py`, whatever foreign code did."""

    code = 202


class UnusableAnswerError(ModelError):
    """A text model gave no usable answer; other requests may still be answered. `text` is the answer; `is_cut_off`: it is
    incomplete."""

    code = 203
    is_public = True

    def __init__(self, problem: str, text: str = "", *, is_cut_off: bool = False) -> None:
        self.text, self.is_cut_off = text, is_cut_off
        super().__init__(problem)


class ContractError(RfmError):
    """Robot and server disagree. `differences` has a line for each difference."""

    code = 210

    def __init__(self, differences: list[str]) -> None:
        self.differences = differences
        super().__init__("; ".join(differences))


class CapacityError(RfmError):
    code = 220


class DrainingError(CapacityError):
    code = 221


class SessionError(RfmError):
    code = 230


class UnprovenError(RfmError):
    """The client has not proved its identity or its right. `is_stale`: the request may be accepted with another challenge.
    `is_copy`: the same request was accepted before, possibly from another process."""

    code = 240

    def __init__(self, problem: str, *, is_stale: bool = False, is_copy: bool = False) -> None:
        self.is_stale, self.is_copy = is_stale, is_copy
        super().__init__(problem)


class UnrecordableError(RfmError):
    """A decision core cannot be restored from a recording that begins here. The text says which part, and what it needs."""

    code = 250


class BadMessageError(RfmError):
    """A message is malformed. `kind` is the counter under which the refusal is reported."""

    code = 300

    def __init__(self, kind: str, problem: str) -> None:
        self.kind = kind
        super().__init__(problem)
