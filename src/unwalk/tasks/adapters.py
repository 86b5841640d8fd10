"""Networks of Hugging Face ``transformers``: as models of one tensor, with the adapter as a file.

What ``peft`` leaves trainable is the token; the network below is the frozen part, which every peer
has and which never travels.  Neither package is imported here: what counts is how a network
behaves.
``pip install 'unwalk[transformers]'`` brings both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from unwalk.core.errors import InvalidInput

NAMES = ("input_ids", "attention_mask")
"""What most networks for text take."""


class Packed(nn.Module):
    """A network that takes several tensors of whole numbers by name, as a model of one tensor.

    A record has the numbers of each name one after the other, equally many of each, as
    :func:`unwalk.from_dataset` with ``inputs=names`` brings them.  Inputs may be floating-point
    numbers: 32 bits hold whole numbers to 16,777,216 exactly.  The output is the network's
    ``logits``, or what it returns where it has none.

    >>> network = lambda ids, mask: (ids * mask).sum(1, keepdim=True)
    >>> Packed(network, names=("ids", "mask"))(torch.tensor([[3.0, 4.0, 1.0, 0.0]])).tolist()
    [[3]]
    """

    def __init__(self, network: nn.Module, names: Sequence[str] = NAMES) -> None:
        super().__init__()
        self.network = network
        self.names = tuple(names)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (records, classes)."""
        numbers, parts = x.flatten(1).long(), len(self.names)
        if numbers.shape[1] % parts:
            raise InvalidInput(
                f"a record has {numbers.shape[1]} numbers for {', '.join(self.names)}; allowed: "
                "equally many for each."
            )
        named = dict(zip(self.names, numbers.chunk(parts, 1), strict=True))
        output = self.network(**named)
        logits: torch.Tensor = getattr(output, "logits", output)
        return logits


def save_adapter(model: nn.Module, folder: str | Path) -> None:
    """Write a model's adapter as ``peft`` reads it, without the network below.

    ``folder`` gets ``adapter_model.safetensors`` and ``adapter_config.json``, for
    ``PeftModel.from_pretrained(network, folder)``.
    """
    for part in model.modules():
        save = getattr(part, "save_pretrained", None)
        if hasattr(part, "peft_config") and callable(save):
            save(str(folder))
            return
    raise InvalidInput(
        f"the model {type(model).__name__} has no adapter of peft; allowed: a model with a network "
        "from peft.get_peft_model in it."
    )
