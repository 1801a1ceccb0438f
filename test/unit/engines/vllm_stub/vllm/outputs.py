from dataclasses import dataclass


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: list
    logprobs: list | None
    finish_reason: str | None = None


class RequestOutput:
    def __init__(self, request_id, outputs, finished):
        self.request_id, self.outputs, self.finished = request_id, outputs, finished
