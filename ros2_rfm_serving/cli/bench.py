"""`rfm bench`."""

from __future__ import annotations

import typer

app = typer.Typer(help="Measurements, side by side in one run.", no_args_is_help=True)
