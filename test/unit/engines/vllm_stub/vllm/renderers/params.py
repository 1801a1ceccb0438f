from dataclasses import dataclass, field, replace
from typing import Any


@dataclass
class ChatParams:
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass
class TokenizeParams:
    add_special_tokens: bool = True

    def with_kwargs(self, **tokenization_kwargs):
        return replace(self, **tokenization_kwargs)
