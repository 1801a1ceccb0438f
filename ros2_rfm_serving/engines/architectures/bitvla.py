"""BitVLA: SigLIP and BitNet with ternary weights, all actions decoded at once, a regression head (ustcwhy/BitVLA, MIT)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ros2_rfm_serving.engines.architectures.base import Architecture, ArchitectureConfig, Observation
from ros2_rfm_serving.engines.architectures.bitnet import BitNet, BitNetConfig
from ros2_rfm_serving.engines.architectures.image_insertion import joined_images
from ros2_rfm_serving.engines.architectures.manifest import Images, Processing, Prompt, Sampling
from ros2_rfm_serving.engines.architectures.ternary import TernaryLinear
from ros2_rfm_serving.engines.architectures.vision import Siglip, VisionConfig
from ros2_rfm_serving.engines.base import Predicts
from ros2_rfm_serving.engines.flow.graphs import Tensors

SIGLIP = VisionConfig(image_px=224, patch_px=14, width=1152, layers=26, heads=16, mlp_width=4304)
IMAGE, STATE = "<|image_pad|>", "<proprio_pad>"
QUESTION = STATE + "What action should the robot take to {instruction}?"
HEAD_BLOCKS = 2


class BitVlaConfig(ArchitectureConfig):
    chunk_length: int = Field(default=8, ge=1)
    action_columns: int = Field(default=7, ge=1)
    state_columns: int = Field(default=8, ge=1)
    vision: VisionConfig = SIGLIP
    ternary_vision: bool = True
    """True if SigLIP's linear layers are ternary; it is also published with bfloat16 ones."""
    language: BitNetConfig = BitNetConfig()
    vocabulary: int = Field(default=128_264, ge=1)
    image_token: int = Field(default=128_010, ge=0)
    """Token at the place of an image; our prompts have one for each image."""
    state_token: int = Field(default=128_011, ge=0)
    stop_token: int = Field(default=128_001, ge=0)
    """Token after the actions."""


class BitSiglip(Siglip):
    """SigLIP without its last norm: patches are the output of its last block."""

    def __init__(self, config: VisionConfig, *, ternary: bool) -> None:
        super().__init__(config)
        self.post_layernorm = nn.Identity()
        layers = self.encoder.layers if ternary else ()
        for part in (part for layer in layers for part in (layer.self_attn, layer.mlp)):
            for name, linear in [named for named in part.named_children() if isinstance(named[1], nn.Linear)]:
                setattr(part, name, TernaryLinear(linear.in_features, linear.out_features, bias=True))


class Projector(nn.Module):
    """Projection of patches, or of the state, to the language model's width."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(inputs, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return out


class HeadBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.fc(self.norm(x))) + x


class RegressionHead(nn.Module):
    """Regression head, from tokens [B, T A, D] to actions [B, T, A]."""

    def __init__(self, width: int, length: int, actions: int) -> None:
        super().__init__()
        self._length = length
        self.norm1, self.norm2 = nn.LayerNorm(actions * width), nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(actions * width, width), nn.Linear(width, actions)
        self.blocks = nn.ModuleList(HeadBlock(width) for _ in range(HEAD_BLOCKS))

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.relu(self.fc1(self.norm1(tokens.reshape(len(tokens), self._length, -1))))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.fc2(self.norm2(x))
        return out


class BitVla(Architecture):
    config_class = BitVlaConfig
    config: BitVlaConfig

    def __init__(self, config: BitVlaConfig) -> None:
        super().__init__()
        self.config = config
        self.vision = BitSiglip(config.vision, ternary=config.ternary_vision)
        self.connector = Projector(config.vision.width, config.language.width)
        self.state_in = Projector(config.state_columns, config.language.width)
        self.language = BitNet(config.language, config.vocabulary)
        self.head = RegressionHead(config.language.width, config.chunk_length, config.action_columns)

    @classmethod
    def toy(cls) -> BitVlaConfig:
        return BitVlaConfig(
            chunk_length=8,
            vision=VisionConfig(image_px=28, patch_px=14, width=32, layers=2, heads=2, mlp_width=48),
            language=BitNetConfig(width=32, layers=2, heads=4, kv_heads=2, mlp_width=48),
            vocabulary=64,
            image_token=63,
            state_token=62,
            stop_token=61,
        )

    @classmethod
    def processing(cls, config: ArchitectureConfig) -> Processing:
        assert isinstance(config, BitVlaConfig)
        side = config.vision.image_px
        prompt = Prompt(template=IMAGE * 2 + QUESTION, lower=True, max_tokens=128)
        return Processing(images=Images(height_px=side, width_px=side), prompt=prompt)

    @classmethod
    def sampling(cls) -> Sampling:
        return Sampling(predicts=Predicts.CHUNK, num_steps=1)

    def image_tokens(self, images: Tensor) -> Tensor:
        tokens: Tensor = self.connector(self.vision(images.flatten(0, 1)))
        return tokens.reshape(*images.shape[:2], *tokens.shape[1:])

    def perceive(self, observation: Observation) -> Tensors:
        """Return the hidden states that the head reads, [B, T A, D]."""
        config, tokens = self.config, observation.tokens
        state = self.state_in(observation.state.to(self.dtype))[:, None]
        embedded = torch.where((tokens == config.state_token)[..., None], state, self.language.embedded(tokens))
        images = self.image_tokens(observation.images.to(self.dtype))
        joined = joined_images(embedded, tokens == config.image_token, observation.words, images)
        (batch, length, width), count = joined.embedded.shape, config.chunk_length * config.action_columns
        stop = self.language.embedded(torch.full((batch, 1), config.stop_token, device=tokens.device))
        x = torch.cat([joined.embedded, stop.new_zeros(batch, count, width), stop], dim=1)
        known = F.pad(joined.words, (0, count + 1), value=True)
        ends = joined.words.sum(dim=1, keepdim=True)
        behind = torch.arange(count + 1, device=tokens.device)
        before = torch.arange(length, device=tokens.device).expand(batch, -1)
        hidden = self.language(x, torch.cat([before, ends + behind], dim=1), known)
        read = torch.cat([ends - 1, (length + behind[: count - 1]).expand(batch, -1)], dim=1)  # each predicts the next token
        return (hidden.gather(1, read[..., None].expand(-1, -1, width)),)

    def round_activations(self, on: bool) -> None:
        for module in self.modules():
            if isinstance(module, TernaryLinear):
                module.rounds.fill_(on)

    def velocity(self, x: Tensor, time: Tensor, context: Tensors) -> Tensor:
        """Return the chunk, which does not depend on x and time."""
        chunk: Tensor = self.head(context[0])
        return chunk
