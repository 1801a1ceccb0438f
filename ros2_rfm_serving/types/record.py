"""Records of which every request makes some: `@record(frozen=True, ...)` is `@dataclass(frozen=True, ...)` for whoever reads them.

Nothing changes them, which mypy sees to. At run time nobody does: to write each field of a frozen dataclass takes longer than all
else that is needed to make one, and a request makes some of them. What is made for every request gives its values by position:
names would be put into a dict and taken out again.

What foreign engines are given or make is none of these: `InferenceRequest` and `RequestId` are frozen at run time too, or an engine
could change whose answer it gives, and `EngineReply` takes names alone, or one could give a chunk in the other's space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    import dataclasses

    def record(*, frozen: bool, **options: Any) -> Any:
        """Equal and hashable by value, as a frozen dataclass is; `slots`, so that nothing is added to it either."""
        assert frozen and options.get("slots")
        return dataclasses.dataclass(unsafe_hash=True, **options)


__all__ = ["record"]
