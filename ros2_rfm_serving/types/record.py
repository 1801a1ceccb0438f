"""Decorators for immutable records that every request creates several of, at a low cost per record.

`@record(frozen=True, ...)` reads as `@dataclass(frozen=True, ...)`, and mypy checks that nothing changes the fields. At run time
nothing enforces it, since writing the fields of a frozen dataclass takes longer than everything else that makes one. A record that
is created for every request receives its values by position: names would be put into a dict and removed from it again.

`@sealed` is for records that foreign code receives. They are frozen at run time too; otherwise an engine could change which request
its answer belongs to, and a policy could change the waiting times. `EngineReply`, which foreign engines create, accepts only names,
since by position a chunk could be given in the wrong space.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(*, frozen: bool, **options: Any) -> Any:
        """Return a decorator for a dataclass with `slots` that is equal and hashable by value, as a frozen dataclass is."""
        assert frozen and options.get("slots")
        return dataclasses.dataclass(unsafe_hash=True, **options)


def runtime_frozen(frozen: type[T]) -> type[T]:
    """Return a frozen dataclass with slots with a constructor that takes a quarter of the time.

    An object is of a writable class until its fields are written, and no other code sees it before. Defaults are created once.
    """
    fields = [(field.name, _default(field)) for field in dataclasses.fields(frozen)]  # type: ignore[arg-type]
    writing = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    writable = type(frozen.__name__, (frozen,), {"__slots__": (), **writing})
    lines = [f"def __init__(self, {', '.join(name for name, _ in fields)}):", "become(self, '__class__', writable)"]
    lines += [*(f"self.{name} = {name}" for name, _ in fields), "self.__class__ = frozen"]
    made: dict[str, Any] = {"become": object.__setattr__, "writable": writable, "frozen": frozen}
    exec("\n    ".join(lines), made)  # as `dataclass` creates its own
    made["__init__"].__defaults__ = tuple(default for _, default in fields if default is not dataclasses.MISSING)
    frozen.__init__ = made["__init__"]  # type: ignore[method-assign]
    return frozen


def _default(field: dataclasses.Field[Any]) -> Any:
    assert not field.kw_only, "what is made often gives its values by position"
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


__all__ = ["record", "runtime_frozen"]
