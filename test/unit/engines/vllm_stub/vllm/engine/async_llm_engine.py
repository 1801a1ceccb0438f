from vllm.v1.engine.async_llm import AsyncLLM

AsyncLLMEngine = AsyncLLM
