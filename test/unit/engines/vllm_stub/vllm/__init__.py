"""As much of vLLM as the `vllm` engine asks for, without a model. `test_vllm.py` holds its names and arguments to the real one's.

Its core is a process of its own, as the real one is. What it answers stands after `say:` in the question; `think` is thought over
for ever; what is `too long` does not fit; `break` fails inside.
"""

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.async_llm_engine import AsyncLLMEngine
from vllm.sampling_params import SamplingParams

__all__ = ["AsyncEngineArgs", "AsyncLLMEngine", "SamplingParams"]
