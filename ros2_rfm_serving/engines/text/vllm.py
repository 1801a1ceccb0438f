"""Text models through vLLM in this process: continuous batching, cached prefixes, answers kept to a judge's words.

vLLM runs on CUDA, and is imported when the first such model is built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image as PilImage
from pydantic import Field, field_validator

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.registry import EngineSpec, checked_options
from ros2_rfm_serving.engines.text import answers as text
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import EncodedImage, EngineReply, Image, InferenceRequest, ModelContract

OURS = {"model", "seed", "max_num_seqs", "limit_mm_per_prompt"}


class VllmOptions(text.TextOptions):
    """`options` of a model with `engine: vllm`."""

    llm: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of `vllm.LLM` (`gpu_memory_utilization`, `max_model_len`, `quantization`, `tensor_parallel_size`)."""

    @field_validator("llm")
    @classmethod
    def _leaves_ours_alone(cls, llm: dict[str, Any]) -> dict[str, Any]:
        if taken := OURS & llm.keys():
            raise ValueError(f"{', '.join(sorted(taken))}: follows from other options")
        return llm


class VllmEngine(Engine):
    """`llm` is a `vllm.LLM`; `sampling` makes `SamplingParams` that keep to the words given, or to none in particular."""

    def __init__(self, contract: ModelContract, options: VllmOptions, llm: Any, sampling: Callable[[Sequence[str]], Any]) -> None:
        self._contract, self._options, self._llm, self._sampling = contract, options, llm, sampling

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return self._options.max_batch_size

    def warm_up(self) -> None:
        """Compiles a grammar too."""
        self._run([text.first_request(self._contract, encoded=False)])

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply | ModelError]:
        try:
            completions = self._run(requests)
        except (ModelError, ValueError):  # for one request that does not fit, vLLM refuses all
            return [self._alone(request) for request in requests]
        return [self._reply(request, completion) for request, completion in zip(requests, completions, strict=True)]

    def reset(self) -> None:
        """Nothing is kept between requests."""

    def _run(self, requests: Sequence[InferenceRequest]) -> list[text.Completion]:
        chats = [text.messages(self._options, self._contract, request, _picture) for request in requests]
        words = [() if text.plans(r.id.component) else self._options.words(r.id.component) for r in requests]
        return [_completion(output) for output in self._llm.chat(chats, [self._sampling(w) for w in words], use_tqdm=False)]

    def _alone(self, request: InferenceRequest) -> EngineReply | ModelError:
        try:
            return self._reply(request, self._run([request])[0])
        except ModelError as error:
            return error
        except ValueError as error:
            refused = ModelError("vLLM does not take this request")
            refused.__cause__ = error
            return refused

    def _reply(self, request: InferenceRequest, completion: text.Completion) -> EngineReply | ModelError:
        try:
            return text.reply_of(self._options, request.id.component, completion)
        except ModelError as error:
            return error


def _picture(image: Image | EncodedImage) -> dict[str, Any]:
    assert not isinstance(image, EncodedImage)
    return {"type": "image_pil", "image_pil": PilImage.fromarray(image)}


def _completion(output: Any) -> text.Completion:
    """Of a `vllm.RequestOutput`: the first of its one completion."""
    written = output.outputs[0]
    chosen = zip(written.token_ids, written.logprobs or (), strict=False)
    entries = [logprobs[token] for token, logprobs in chosen]
    return text.Completion(
        text=written.text,
        ended=written.finish_reason == "stop",
        tokens=tuple((entry.decoded_token or "", entry.logprob) for entry in entries),
    )


def build(spec: EngineSpec) -> VllmEngine:
    """Loads the weights. Raises: `ConfigurationError`, `ImportError`."""
    options = checked_options(VllmOptions, spec)
    contract = text.contract_of(spec, options, apart_from=frozenset({"max_batch_size"}))
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    def sampling(words: Sequence[str]) -> Any:
        kept = {"structured_outputs": StructuredOutputsParams(choice=list(words)), "logprobs": 0} if words else {}
        return SamplingParams(max_tokens=options.max_tokens, temperature=options.temperature, seed=options.seed, **kept)

    llm = LLM(
        model=options.model or spec.model,
        seed=options.seed,
        max_num_seqs=options.max_batch_size,
        limit_mm_per_prompt={"image": len(contract.cameras)},
        **options.llm,
    )
    return VllmEngine(contract, options, llm, sampling)
