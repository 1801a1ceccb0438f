"""Latency profiles of text models with random weights: a verdict by a server's vLLM; for a tiny model also by transformers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lab.benchmarks.gpu import vlm
from lab.benchmarks.gpu.child import Skip, Task
from lab.benchmarks.gpu.machine import Machine
from lab.benchmarks.gpu.profiled import TOY_ARRIVALS, fill
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.engines.text import answers
from ros2_rfm_serving.engines.text.completion import Completion
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.profiles import ARRIVALS, Profile
from ros2_rfm_serving.types import EngineReply, InferenceRequest, ModelContract

PUBLISHED = {"qwen2_5_vl_7b": "Qwen2.5-VL-7B-Instruct", "qwen2_5_vl_3b": "Qwen2.5-VL-3B-Instruct"}
"""Text models of the catalogue, which ROSA's figures need."""
CAMERAS = ("front", "wrist")
MAX_TOKENS, TOY_MAX_TOKENS = 16, 2
LLM: dict[str, Any] = {"max_model_len": 4096, "load_format": "dummy"}
TINY_LLM: dict[str, Any] = {"max_model_len": 2048, "gpu_memory_utilization": 0.2, "enforce_eager": True}


def run(task: Task, name: str) -> None:
    """Measure a profile of whole batches: vLLM schedules its own iterations among them."""
    folder = task.out / "models" / (vlm.TINY if task.is_toy else name)
    folder.mkdir(parents=True, exist_ok=True)
    has_vllm = task.machine.on_gpu and find_spec("vllm") is not None
    if not (has_vllm or task.is_toy):
        raise Skip("vLLM is not installed here: a text model's latency is that of its server")
    load = _vllm if has_vllm else _plain
    fill(
        task,
        name,
        model_of(task.machine, name),
        partial(load, task, folder, name),
        ("fixed",),
        (1,),
        TOY_ARRIVALS if task.is_toy else ARRIVALS,
    )


def model_of(machine: Machine, name: str) -> str:
    return machine.model(PUBLISHED[name] if machine.size == "full" else name)


def _vllm(task: Task, folder: Path, name: str) -> Engine:
    vlm.save(folder, vlm.TINY if task.is_toy else name)
    options = {"model": str(folder), "max_tokens": MAX_TOKENS, "timeout_s": 60.0, "llm": TINY_LLM if task.is_toy else LLM}
    engine = build_engine(_spec(task.machine, name, "vllm", options))
    engine.warm_up()
    return engine


def _plain(task: Task, folder: Path, name: str) -> Engine:
    options = {"model": str(vlm.save(folder)), "max_tokens": TOY_MAX_TOKENS}
    return Plain(_spec(task.machine, name, "transformers", options), task.machine.device)


def _spec(machine: Machine, name: str, engine: str, options: dict[str, Any]) -> EngineSpec:
    entry = CatalogueEntry(engine=engine, output="judgement", cameras=CAMERAS, options=options)
    return EngineSpec(
        model=model_of(machine, name),
        entry=entry,
        models_folder=Path(options["model"]).parent,
        profile=Profile({}),
        gpu_type=machine.gpu_type,
        wait=time.sleep,
    )


class Plain(Engine):
    """Engine that answers one request after the other with the likeliest tokens."""

    def __init__(self, spec: EngineSpec, device: str) -> None:
        from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration, Qwen2VLImageProcessor

        self._options = answers.TextOptions.model_validate(spec.entry.options)
        self._contract, self._device = answers.contract_of(spec, self._options), device
        where = self._options.model
        self._tokenizer: Any = AutoTokenizer.from_pretrained(where)
        self._images: Any = Qwen2VLImageProcessor.from_pretrained(where)
        self._model: Any = Qwen2_5_VLForConditionalGeneration.from_pretrained(where).float().to(device).eval()

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return 32

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply | ModelError]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: InferenceRequest) -> EngineReply | ModelError:
        component = request.id.component
        chat = answers.messages(self._options, self._contract, request, lambda image: {"type": "image"}, as_json=False)
        text = self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        seen = self._images(images=[request.images[camera] for camera in self._contract.cameras], return_tensors="pt")
        for size in seen["image_grid_thw"].prod(dim=1).tolist():  # a token has four patches
            text = text.replace("<|image_pad|>", "<|image_place|>" * (size // 4), 1)
        tokens = self._tokenizer(text.replace("<|image_place|>", "<|image_pad|>"), return_tensors="pt").to(self._device)
        settings = {"max_new_tokens": self._options.max_tokens, "do_sample": False, "pad_token_id": self._tokenizer.pad_token_id}
        written = self._model.generate(**tokens, **seen.to(self._device), **settings)
        new = written[0, tokens["input_ids"].shape[1] :]
        said = self._tokenizer.decode(new, skip_special_tokens=False)  # marks of thoughts may be special tokens
        ended = len(new) < self._options.max_tokens
        try:
            return answers.reply_of(self._options, component, Completion(text=said, ended=ended))
        except ModelError as error:
            return error
