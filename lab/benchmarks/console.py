"""Console of the benchmarks, and their common option."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    pass
console = Console() if Console().is_terminal else Console(width=120)


JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the figures there")]
