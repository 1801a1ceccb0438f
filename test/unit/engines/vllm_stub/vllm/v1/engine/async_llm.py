import asyncio
import math
import multiprocessing
import signal
import threading
import time
from typing import ClassVar

from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.renderers.base import BaseRenderer
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError


class AsyncLLM:
    stub_made: ClassVar[list] = []

    def __init__(self, vllm_config):
        self.stub_arguments, self.renderer = vllm_config, BaseRenderer()
        self.stub_sampling, self.stub_priorities, self.stub_aborted = [], [], []
        self.stub_core = multiprocessing.get_context("fork").Process(target=self.stub_sleep, name="EngineCore", daemon=True)
        self.stub_core.start()
        self._dead, self._loop = False, asyncio.get_running_loop()
        self._thinking: set[asyncio.Future] = set()
        threading.Thread(target=self._monitor, daemon=True).start()
        AsyncLLM.stub_made.append(self)

    @staticmethod
    def stub_sleep():
        """It hears signals by itself, as the real one does, whatever the process that it was forked from does with them."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(600.0)

    @classmethod
    def from_engine_args(cls, engine_args):
        return cls(engine_args)

    @property
    def errored(self):
        return self._dead

    async def generate(self, prompt, sampling_params, request_id, *, priority=0):
        if self.errored:
            raise EngineDeadError
        self.stub_sampling.append(sampling_params)
        self.stub_priorities.append(priority)
        question = prompt["prompt"]
        if "break" in question:
            raise EngineGenerateError
        if "think" in question:
            await self._think(request_id)
        words = sampling_params.structured_outputs.choice or [""]
        word = question.partition("say:")[2].partition("\nAnswer")[0] or words[0]  # unasked, a word that the grammar allows
        logprobs = [{7: Logprob(math.log(0.5), decoded_token=word)}] if sampling_params.logprobs is not None else None
        yield RequestOutput(request_id, [CompletionOutput(0, word, [7], logprobs, "stop")], True)

    def shutdown(self, timeout=None):
        self.stub_core.terminate()
        self.stub_core.join(5.0 if timeout is None else timeout)
        self.stub_core.kill()  # as vLLM does (v1/utils.py): it may have been told before it listened
        self.stub_core.join()

    async def _think(self, request_id):
        pending = self._loop.create_future()
        self._thinking.add(pending)
        try:
            await pending
        except asyncio.CancelledError:
            self.stub_aborted.append(request_id)
            raise

    def _monitor(self):
        self.stub_core.join()
        self._dead = True
        self._loop.call_soon_threadsafe(self._propagate)

    def _propagate(self):
        for pending in self._thinking:
            if not pending.done():
                pending.set_exception(EngineDeadError())
