"""`rfm reproduce`: the figures of papers, run anew."""

from __future__ import annotations

import typer

from ros2_rfm_serving.reproductions.auras.run import auras
from ros2_rfm_serving.reproductions.kairos.run import kairos
from ros2_rfm_serving.reproductions.rosa.run import rosa
from ros2_rfm_serving.reproductions.vlacpp.run import vlacpp

app = typer.Typer(help="The figures of papers, run anew in the simulated factory and worlds.", no_args_is_help=True)
app.command()(rosa)
app.command()(kairos)
app.command()(auras)
app.command()(vlacpp)
