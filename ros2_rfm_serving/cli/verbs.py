"""Verbs that are imported when they are used: importing all of them takes several times as long as one needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from ros2_rfm_serving.checkout import is_in_lab, use_lab
from ros2_rfm_serving.operate.progress import spinner


def verbs_app(verbs: Mapping[str, str], *, help: str, groups: Mapping[str, Mapping[str, str]] | None = None) -> typer.Typer:
    """Return an application whose verbs are imported one by one, when a user calls them.

    Args:
        verbs: the name that a user types -> "module:name" of a function, or of a `Typer` with verbs of its own. A module
            keeps its verbs in `VERBS`: there `rfm doctor` finds what is imported, without importing it. A module of the lab is
            looked for in a checkout; without one the verb raises `ConfigurationError`.
        help: the first line of `--help`.
        groups: title -> verb -> one line about it. `--help` then shows the verbs under these titles and imports none of
            them. Without groups it shows the docstrings in the order of `verbs`.
    """
    titled = [(name, line, title) for title, lines in (groups or {}).items() for name, line in lines.items()]
    placeholders = {name: _placeholder(name, line, title) for name, line, title in titled}

    class Verbs(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return list(placeholders or verbs)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name in verbs and cmd_name not in self.commands:
                self.commands[cmd_name] = _command(cmd_name, verbs[cmd_name])
            return self.commands.get(cmd_name)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            if args and args[0] not in verbs:  # so that the error can propose the nearest name
                self.commands = {name: placeholders.get(name) or _placeholder(name, "", "") for name in verbs}
            return super().resolve_command(ctx, args)

        def format_help(self, ctx: Any, formatter: Any) -> None:
            if placeholders:
                self.commands = dict(placeholders)
            super().format_help(ctx, formatter)

    app = typer.Typer(cls=Verbs, help=help, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(_nothing)
    return app


def _placeholder(name: str, line: str, group: str) -> TyperCommand:
    """Return a verb as `--help` lists it; `get_command` imports the real one."""
    return TyperCommand(name, callback=_nothing, help=line, rich_help_panel=group or None)


def _command(name: str, place: str) -> Any:
    module, _, attribute = place.partition(":")
    with spinner(f"loading {name}"):
        if is_in_lab(module):
            use_lab()
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
