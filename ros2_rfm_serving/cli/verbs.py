"""Verbs that are imported when they are asked for: all of them together are several times what one needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

import typer
from typer.core import TyperGroup


def verbs_app(verbs: Mapping[str, str], *, help: str) -> typer.Typer:
    """verbs: as a user types it -> "module:name" of a function, or of a `Typer` with verbs of its own; `--help` keeps their order.

    A module has its verbs in `VERBS`: there `rfm doctor` finds what is imported, without importing it.
    """

    class Verbs(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return list(verbs)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            # Of a word that is none all are known: the error proposes the nearest.
            for name in [cmd_name] if cmd_name in verbs else verbs:
                if name not in self.commands:
                    self.commands[name] = _command(name, verbs[name])
            return self.commands.get(cmd_name)

    app = typer.Typer(cls=Verbs, help=help, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(_nothing)
    return app


def _command(name: str, place: str) -> Any:
    module, _, attribute = place.partition(":")
    found: typer.Typer | Callable[..., Any] = getattr(import_module(module), attribute)
    app = typer.Typer(add_completion=False)
    app.callback()(_nothing)  # so that it is a group, of one
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name)
    else:
        app.command(name)(found)
    return cast(TyperGroup, typer.main.get_command(app)).commands[name]


def _nothing() -> None:
    pass
