"""Records of which every request makes some, and what it costs to make one that nobody can change.

`@record(frozen=True, ...)` is `@dataclass(frozen=True, ...)` for whoever reads them. Nothing changes them, which mypy sees to. At
run time nobody does: to write each field of a frozen dataclass takes longer than all else that is needed to make one. What is made
for every request gives its values by position: names would be put into a dict and taken out again.

What foreign code is given is `@sealed`: frozen at run time too, or an engine could change whose answer it gives, and a policy
since when somebody waits. `EngineReply`, which foreign engines make, takes names alone, or one could give a chunk in the other's
space.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(*, frozen: bool, **options: Any) -> Any:
        """Equal and hashable by value, as a frozen dataclass is; `slots`, so that nothing is added to it either."""
        assert frozen and options.get("slots")
        return dataclasses.dataclass(unsafe_hash=True, **options)


def sealed(frozen: type[T]) -> type[T]:
    """A frozen dataclass with slots that takes a quarter of the time to make: it is of a class of its own, which can be written to,
    until its fields are written. Nobody sees it before. Defaults are made once."""
    fields = [(field.name, _default(field)) for field in dataclasses.fields(frozen)]  # type: ignore[arg-type]
    writing = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    writable = type(frozen.__name__, (frozen,), {"__slots__": (), **writing})
    lines = [f"def __init__(self, {', '.join(name for name, _ in fields)}):", "become(self, '__class__', writable)"]
    lines += [*(f"self.{name} = {name}" for name, _ in fields), "self.__class__ = frozen"]
    made: dict[str, Any] = {"become": object.__setattr__, "writable": writable, "frozen": frozen}
    exec("\n    ".join(lines), made)  # as `dataclass` makes its own
    made["__init__"].__defaults__ = tuple(default for _, default in fields if default is not dataclasses.MISSING)
    frozen.__init__ = made["__init__"]  # type: ignore[method-assign]
    return frozen


def _default(field: dataclasses.Field[Any]) -> Any:
    assert not field.kw_only, "what is made often gives its values by position"
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


__all__ = ["record", "sealed"]
