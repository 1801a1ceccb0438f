from vllm.exceptions import VLLMServerError


class EngineGenerateError(VLLMServerError):
    pass


class EngineDeadError(VLLMServerError):
    pass
