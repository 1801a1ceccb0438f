"""`rfm bench decoding`: effect on a model's answers of decoding JPEGs no larger than needed, and the time that it saves."""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table

from lab.benchmarks.console import JsonFile, console
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.operate.engines import load_engine
from ros2_rfm_serving.types import EngineReply

if TYPE_CHECKING:
    from ros2_rfm_serving.engines.base import Engine
    from ros2_rfm_serving.server.intake import Ready
    from ros2_rfm_serving.types import EncodedImage, Image, InferenceRequest

RENDERED_PX = 480
"""Largest size that Meta-World's scenes allow."""


@dataclass
class Way:
    """Conversion from a camera's pixels to the model's, with its results."""

    ready: Ready
    pixels: Callable[[Any], Image] | None = None
    """Conversion of the camera's pixels without a JPEG in between."""
    successes: int = 0
    episodes: int = 0
    cpu_ms: list[float] = field(default_factory=list)
    """CPU time per image, from its bytes to the model's input."""
    apart: list[float] = field(default_factory=list)
    """Mean distance per request of its actions from those after full decoding, in standard deviations of the actions."""
    agreed: list[bool] = field(default_factory=list)
    """Whether the verdict is that after full decoding, per judge and request."""


class Watched:
    """Substitute for an engine in `run_episodes`: it acts by one conversion, and compares the answers with the others."""

    def __init__(self, engine: Engine, judges: Sequence[Engine], ways: Mapping[str, Way], acting: str, quality: int) -> None:
        self._engine, self._judges, self._ways = engine, judges, ways
        self._acting, self._quality = acting, quality

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        (request,) = requests
        encoded = {camera: _encoded(camera, image, self._quality) for camera, image in request.images.items()}
        seen = {
            name: self._seen(request, encoded, self._ways[name])
            for name in (self._ways if self._acting == WHOLE else (self._acting,))
        }
        chunks = {name: _answer(self._engine, row).chunk_robot for name, row in seen.items()}
        std = np.asarray(self._engine.contract.action_std, np.float32)
        verdicts = {name: [_answer(judge, row).verdict for judge in self._judges] for name, row in seen.items() if len(seen) > 1}
        for name in verdicts.keys() - {WHOLE}:
            self._ways[name].apart.append(float((np.abs(chunks[name] - chunks[WHOLE]) / std).mean()))
            self._ways[name].agreed += map(operator.eq, verdicts[name], verdicts[WHOLE])
        return [EngineReply(chunk_robot=chunks[self._acting])]

    def _seen(self, request: InferenceRequest, encoded: Mapping[str, EncodedImage], way: Way) -> InferenceRequest:
        images: dict[str, Any] = {}
        for camera, image in encoded.items():
            began_s = time.thread_time()
            images[camera] = way.pixels(request.images[camera]) if way.pixels else way.ready(image)
            way.cpu_ms.append(1e3 * (time.thread_time() - began_s))
        return replace(request, images=images)


def _answer(engine: Engine, request: InferenceRequest) -> EngineReply:
    (reply,) = engine.infer([request])
    if isinstance(reply, ModelError):
        raise reply
    return reply


WHOLE, SCALED, RAW, BLACK = "whole JPEG", "scaled JPEG", "no JPEG", "black"
JUDGES = ("rfm/metaworld-judge", "rfm/metaworld-safety")


def decoding(
    model: Annotated[str, typer.Argument(help="Model of the catalogue, a bundle's")] = "rfm/metaworld-flow",
    episodes: Annotated[int, typer.Option(min=1, help="Per task and way")] = 20,
    tasks: Annotated[str, typer.Option(help="Of Meta-World; empty: the shipped evaluation's")] = "",
    quality: Annotated[int, typer.Option(min=1, max=100, help="Of the JPEGs")] = 90,
    json_file: JsonFile = None,
) -> None:
    """A policy's success and actions, and judges' verdicts, on cameras of 480 x 480: JPEGs decoded whole, at a fraction
    (`scaled_decoding`), no JPEGs, and black images: what any change of pixels could do. Distances and verdicts are beside the whole
    JPEG's, on the same frames, actions in their standard deviations.

    Example:  rfm bench decoding --episodes 20
    """
    from ros2_rfm_serving.server.intake import readying

    engine = load_engine(model, 1, options={"scaled_decoding": True})
    contract = engine.contract
    scaled, whole = (
        readying(replace(contract, min_image_px=least), False, engine.fit_image) for least in (contract.min_image_px, ())
    )
    raw, black = (Way(whole, pixels=pixels) for pixels in (lambda image: image, np.zeros_like))
    ways = {WHOLE: Way(whole), SCALED: Way(scaled), RAW: raw, BLACK: black}
    judges = [load_engine(name, 1) for name in JUDGES]
    for acting, way in ways.items():
        for task, instruction, seed in _tasks(tasks):
            _run(Watched(engine, judges, ways, acting, quality), way, task, instruction, range(seed, seed + episodes))
    console.print(_table(ways))
    if json_file:
        figures = {
            name: {key: value for key, value in vars(way).items() if key not in ("ready", "pixels")} for name, way in ways.items()
        }
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _run(watched: Any, way: Way, task: str, instruction: str, seeds: range) -> None:
    from ros2_rfm_serving.worlds.metaworld import metaworld_arm
    from ros2_rfm_serving.worlds.rollout import run_episodes

    with metaworld_arm(task, image_size_px=RENDERED_PX) as arm:
        done = run_episodes(arm, watched, instruction, list(seeds))
    way.successes += sum(episode.success for episode in done)
    way.episodes += len(done)


def _tasks(wanted: str) -> list[tuple[str, str, int]]:
    """Return (task, instruction, first seed) of the shipped evaluation's tasks."""
    from ros2_rfm_serving.factory import load_factory
    from ros2_rfm_serving.shipped import shipped

    declared = load_factory(shipped("config", "factory_evaluation.yaml")).tasks.values()
    all_tasks = [(task.world.task, task.components["system1"].prompt, task.world.seed) for task in declared if task.world]
    return [task for task in all_tasks if not wanted or task[0] in wanted.split(",")]


def _encoded(camera: str, image: Any, quality: int) -> EncodedImage:
    import simplejpeg

    from ros2_rfm_serving.types import EncodedImage

    data = simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality=quality, colorspace="RGB", colorsubsampling="420")
    return EncodedImage(camera=camera, format="jpeg", data=data)


def _table(ways: Mapping[str, Way]) -> Table:
    from ros2_rfm_serving.monitoring.board import wilson_interval

    table = Table("images", "success", "95 % interval", "CPU per image", "actions apart: mean, 99 %", "same verdicts")
    for name, way in ways.items():
        low, high = wilson_interval(way.successes, way.episodes)
        cpu = "-" if way.pixels else f"{np.median(way.cpu_ms):.2f} ms"
        apart = f"{np.mean(way.apart):.3f}, {np.quantile(way.apart, 0.99):.3f}" if way.apart else "-"
        agreed = f"{np.mean(way.agreed):.1%}" if way.agreed else "-"
        table.add_row(name, f"{way.successes}/{way.episodes}", f"{low:.0%} - {high:.0%}", cpu, apart, agreed)
    return table
