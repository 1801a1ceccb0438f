"""Text models on vLLM in this process: continuous batching, a cached prefix, and answers restricted to a judge's words.

vLLM runs on CUDA, and is imported when the first such model is built. Its engine core is a process of its own, which may die, and
which must not outlive this one. docs/reference/engines.md, "vLLM", lists the behaviour that this engine relies on, by release.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image as PilImage
from pydantic import Field, field_validator

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.registry import EngineSpec, checked_options
from ros2_rfm_serving.engines.text import answers as text
from ros2_rfm_serving.engines.text import plans as plan_text
from ros2_rfm_serving.engines.text.completion import Completion, was_cut_off
from ros2_rfm_serving.engines.text.subprocess_reaper import SubprocessReaper
from ros2_rfm_serving.errors import ConfigurationError, ModelError, UnusableAnswerError
from ros2_rfm_serving.loop_thread import LoopThread
from ros2_rfm_serving.types import PRECEDENCE, EncodedImage, EngineReply, Image, InferenceRequest, ModelContract

_log = logging.getLogger(__name__)
MAX_SHOWN_CHARACTERS = 120
"""Number of characters of a first answer that an error shows."""
LOADS_WITHIN_S, WARMS_UP_WITHIN_S = 3600.0, 600.0
SLACK_S = 5.0
"""Seconds beyond a request's time limit, within which it has been aborted."""
OURS = frozenset({"model", "seed", "max_num_seqs", "limit_mm_per_prompt", "scheduling_policy"})


class VllmOptions(text.TextOptions):
    """`options` of a model with `engine: vllm`."""

    timeout_s: float = Field(default=8.0, gt=0.0, le=600.0)
    """Seconds from a request to its answer; the request is aborted then."""
    llm: dict[str, Any] = Field(default_factory=dict)
    """Further `vllm.AsyncEngineArgs` (`gpu_memory_utilization`, `max_model_len`, `quantization`, `tensor_parallel_size`)."""

    @field_validator("llm")
    @classmethod
    def _leaves_ours_alone(cls, llm: dict[str, Any]) -> dict[str, Any]:
        return text.without(OURS, llm, "follows from other options")


class Vllm:
    """Adapter to vLLM's interface. It belongs to one event loop, and is created there, as it starts tasks of its own."""

    def __init__(self, chat_template_kwargs: dict[str, Any], **arguments: Any) -> None:
        """Load the weights. Raises: `ImportError`; `TypeError` for an argument that vLLM does not have."""
        from vllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams
        from vllm.exceptions import VLLMClientError
        from vllm.renderers import ChatParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
        from vllm.utils.mistral import is_mistral_tokenizer

        self.Refused: type[Exception] = VLLMClientError
        self._llm = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(**arguments))
        self._renderer = self._llm.renderer
        self._chat = ChatParams(
            chat_template_kwargs={
                **chat_template_kwargs,
                "add_generation_prompt": True,
                "continue_final_message": False,
                "tools": None,
                "tokenize": is_mistral_tokenizer(self._renderer.tokenizer),
            }
        )
        # The chat template writes the first token itself.
        self._tokens = self._renderer.default_chat_tok_params.with_kwargs(add_special_tokens=False)
        # Marks of thoughts are special tokens of some models: without them thoughts would look like an answer.
        self._sampling: Callable[..., Any] = lambda words, **settings: SamplingParams(
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_special_tokens=False,
            structured_outputs=StructuredOutputsParams(choice=list(words))
            if words
            else StructuredOutputsParams(json=plan_text.SCHEMA),
            **({"logprobs": 0} if words else {}),
            **settings,
        )
        self._ids = itertools.count()

    async def say(self, chat: list[dict[str, Any]], words: Sequence[str], priority: int, **settings: Any) -> Completion:
        """Return the completion of a chat. words: those of a judge; empty for a planner.
        priority: the lowest is served first. Raises: `Refused` for a request that does not fit; any other error of vLLM."""
        _, (prompt,) = await self._renderer.render_chat_async([chat], self._chat, self._tokens)
        sampling, output = self._sampling(words, **settings), None
        async for output in self._llm.generate(prompt, sampling, str(next(self._ids)), priority=priority):  # noqa: B007 (the last)
            pass
        assert output is not None
        return _completion(output)

    @property
    def is_dead(self) -> bool:
        """True if the engine core, or the task that reads from it, has ended: it refuses every request from then on."""
        return bool(self._llm.errored)

    def close(self) -> None:
        """End the engine core."""
        self._llm.shutdown()


class VllmEngine(Engine):
    """Engine on vLLM. It owns an event loop on a thread of its own, and vLLM's processes, until it is closed."""

    def __init__(self, contract: ModelContract, options: VllmOptions, max_concurrent: int, start: Callable[[], Vllm]) -> None:
        self._contract, self._options, self.max_concurrent = contract, options, max_concurrent
        self.timeout_s = options.timeout_s
        self._thinks = False
        """True once the log has a warning that the model thinks."""
        self._thread = LoopThread(contract.model)
        before = set(multiprocessing.active_children())
        try:
            self._vllm = self._thread.call(_made(start), LOADS_WITHIN_S)
        except BaseException:
            self._thread.stop()
            raise
        self._guardian = SubprocessReaper(child.pid for child in set(multiprocessing.active_children()) - before)

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return self.max_concurrent

    @property
    def is_dead(self) -> bool:
        return self._vllm.is_dead

    def warm_up(self) -> None:
        """Run a first request, which also compiles a grammar.
        Raises: `ModelError`, also if a judge's first answer is none of its words."""
        request = text.first_request(self._contract, encoded=False)
        answer = self._thread.call(self._answer(request, WARMS_UP_WITHIN_S), WARMS_UP_WITHIN_S + SLACK_S)
        if isinstance(answer, UnusableAnswerError) and not answer.is_cut_off:
            _log.warning(f"{self._contract.model}: its first answer cannot be used: {answer}")
        elif isinstance(answer, ModelError):
            raise answer
        elif answer.violation:
            words = ", ".join(self._options.words(request.id.component))
            problem = f"{answer.text[:MAX_SHOWN_CHARACTERS]!r}: {answer.violation}"
            raise UnusableAnswerError(
                f"the answer at warm-up is none of the words {words}: {problem}; if it thinks, {text.THINKING_OFF}"
            )

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply | ModelError]:
        return self._thread.call(self._answer_all(requests), self._options.timeout_s + SLACK_S)

    def close(self) -> None:
        self._vllm.close()
        self._thread.stop()
        self._guardian.close()

    async def _answer_all(self, requests: Sequence[InferenceRequest]) -> list[EngineReply | ModelError]:
        return list(await asyncio.gather(*(self._answer(request, self._options.timeout_s) for request in requests)))

    async def _answer(self, request: InferenceRequest, timeout_s: float) -> EngineReply | ModelError:
        try:
            completion = await asyncio.wait_for(self._say(request), timeout_s)
            return text.reply_of(self._options, request.id.component, completion, as_json=True)
        except ModelError as error:
            return error
        except asyncio.TimeoutError:
            return ModelError(f"no answer within {timeout_s:g} s")
        except Exception as error:
            return self._failed(error)

    async def _say(self, request: InferenceRequest) -> Completion:
        options, component = self._options, request.id.component
        chat = text.messages(options, self._contract, request, _picture, as_json=True)
        words = () if text.plans(component) else options.words(component)
        priority = PRECEDENCE.get(component, PRECEDENCE["*"])
        given = {"temperature": options.temperature, "seed": options.seed}
        settings = {name: value for name, value in given.items() if value is not None}
        completion = await self._vllm.say(chat, words, priority, max_tokens=options.max_tokens, **settings)
        if not self._thinks and text.is_thinking(completion):
            self._thinks = True
            _log.warning(text.thinking_warning(self._contract.model))
        return completion

    def _failed(self, error: Exception) -> ModelError:
        """Return the error of one request that vLLM refuses or fails to answer; other requests are not affected."""
        if self._vllm.is_dead:
            said = "vLLM's engine core is dead"
        else:
            said = "vLLM does not take this request" if isinstance(error, self._vllm.Refused) else "vLLM failed with this request"
        failed = ModelError(f"{said}: {type(error).__name__}")
        failed.__cause__ = error
        return failed


async def _made(start: Callable[[], Vllm]) -> Vllm:
    return start()


def _picture(image: Image | EncodedImage) -> dict[str, Any]:
    assert not isinstance(image, EncodedImage)
    return {"type": "image_pil", "image_pil": PilImage.fromarray(image)}


def _completion(output: Any) -> Completion:
    """Return the completion in a `vllm.RequestOutput`, which has a single one."""
    written = output.outputs[0]
    chosen = zip(written.token_ids, written.logprobs or (), strict=False)
    entries = [logprobs[token] for token, logprobs in chosen]
    return Completion(
        text=written.text,
        ended=not was_cut_off(written.finish_reason or ""),
        reason=written.finish_reason or "",
        tokens=tuple((entry.decoded_token or "", entry.logprob) for entry in entries),
    )


def build(spec: EngineSpec) -> VllmEngine:
    """Load the weights and build the engine. Raises: `ConfigurationError`, `ImportError`."""
    options = checked_options(VllmOptions, spec)
    contract = text.contract_of(spec, options, apart_from=frozenset({"max_concurrent", "timeout_s"}))
    at_once = text.max_concurrent(spec, options)

    def start() -> Vllm:
        return Vllm(
            options.chat_template_kwargs,
            model=options.model or spec.model,
            seed=options.seed or 0,
            max_num_seqs=at_once,
            limit_mm_per_prompt={"image": len(contract.cameras)},
            scheduling_policy="priority",
            **options.llm,
        )

    try:
        return VllmEngine(contract, options, at_once, start)
    except TypeError as error:
        key = f"models.{spec.model}.options.llm"
        raise ConfigurationError(f"vLLM takes no such argument: {error}", file=text.CATALOGUE, key=key) from error
