"""A network of ``transformers`` with an adapter, for tests that name it where that is installed."""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForSequenceClassification

from unwalk.tasks.adapters import Packed

WORDS = 30


class Words(nn.Module):
    """Three numbers as words, all of which count."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = (1 + 5 * x[:, :3].abs()).clamp(max=WORDS - 1)
        return torch.cat([words, torch.ones_like(words)], 1)


def reader() -> nn.Module:
    """For six inputs and three classes."""
    shapes = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=3,
        pad_token_id=0,
    )
    lora = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["q_proj", "v_proj"])
    network = get_peft_model(LlamaForSequenceClassification(shapes), lora)
    return nn.Sequential(Words(), Packed(network))
