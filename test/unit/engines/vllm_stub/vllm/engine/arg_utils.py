from dataclasses import dataclass, field
from typing import Any


@dataclass
class EngineArgs:
    model: str
    seed: int = 0
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    limit_mm_per_prompt: dict[str, Any] = field(default_factory=dict)
    scheduling_policy: str = "fcfs"
    gpu_memory_utilization: float = 0.92
    quantization: str | None = None
    tensor_parallel_size: int = 1
    reasoning_parser: str = ""


@dataclass
class AsyncEngineArgs(EngineArgs):
    pass
