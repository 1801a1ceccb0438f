from vllm.exceptions import VLLMValidationError
from vllm.renderers.params import TokenizeParams


class BaseRenderer:
    def __init__(self):
        self.tokenizer = None
        self.stub_chats = []

    @property
    def default_chat_tok_params(self):
        return TokenizeParams()

    async def render_chat_async(self, conversations, chat_params, tok_params=None):
        assert chat_params.chat_template_kwargs["add_generation_prompt"] and not tok_params.add_special_tokens
        self.stub_chats += conversations
        self.stub_chat_params = chat_params
        question = conversations[0][-1]["content"][-1]["text"]
        if "too long" in question:
            raise VLLMValidationError("This model's maximum context length is 8 tokens.")
        return conversations, [{"type": "multimodal", "prompt": question}]
