"""SigLIP, the image encoder of most of these models: the network of `transformers`, with the sizes of a configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from transformers import SiglipVisionConfig
from transformers.models.siglip import modeling_siglip


class VisionConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    image_px: int = Field(ge=1)
    patch_px: int = Field(ge=1)
    width: int = Field(ge=1)
    layers: int = Field(ge=1, le=1000)
    heads: int = Field(ge=1)
    mlp_width: int = Field(ge=1)

    @property
    def patches(self) -> int:
        return (self.image_px // self.patch_px) ** 2


class Siglip(nn.Module):
    """Encoder of image patches. Position i belongs to patch i, in every precision.

    SmolVLM computes that index from a fraction. In transformers before 5 it is off by one for nearly every patch in float32, and
    right in half precision, in which SmolVLA was trained (vla.cpp §4.6, Appendix E).
    """

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        sizes = SiglipVisionConfig(
            image_size=config.image_px,
            patch_size=config.patch_px,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.mlp_width,
            vision_use_head=False,
            attn_implementation="sdpa",
        )
        own = modeling_siglip.SiglipVisionTransformer(sizes) if _NESTED else modeling_siglip.SiglipVisionModel(sizes)
        self.embeddings, self.encoder, self.post_layernorm = own.embeddings, own.encoder, own.post_layernorm

    def forward(self, images: Tensor) -> Tensor:
        """Return the encoded patches, [N, patches, width]. images: [N, 3, height, width]."""
        out: Tensor = self.post_layernorm(self.encoder(inputs_embeds=self.embeddings(images)).last_hidden_state)
        return out


_NESTED = hasattr(modeling_siglip, "SiglipVisionTransformer")
