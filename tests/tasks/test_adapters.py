"""Networks that take several tensors by name, as models of one; the adapters of peft as files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from tests.tasks.own_frozen import WORDS, Reader
from unwalk import from_dataset
from unwalk.core.errors import InvalidInput
from unwalk.tasks.adapters import NAMES, Packed, save_adapter

LONG = 5


class Sentences(Dataset[dict[str, Any]]):
    """Items as a tokenizer and ``datasets`` make them."""

    def __init__(self, form=lambda row: row.tolist()) -> None:
        self.ids = np.random.default_rng(0).integers(WORDS, size=(60, LONG))
        self.form = form

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int):
        mask = np.ones(LONG, np.int64)
        mask[LONG - row % 3 :] = 0
        ids = self.ids[row]
        return {
            "input_ids": self.form(ids),
            "attention_mask": self.form(mask),
            "labels": int(ids[0] % 3),
        }


SETTINGS = {"inputs": NAMES, "classes": 3, "peers": 3, "model": lambda: Packed(Reader())}


@pytest.mark.parametrize("form", [lambda row: row.tolist(), np.asarray, torch.from_numpy])
@pytest.mark.parametrize("dtype", [torch.float32, None])
def test_items_of_several_tensors_are_taken_side_by_side(form, dtype):
    sentences = Sentences(form)
    task = from_dataset(sentences, **SETTINGS, dtype=dtype)
    assert task.source.shape == (2 * LONG,)
    row = int(task.ids(1)[4])
    item = sentences[row]
    wanted = [*np.asarray(item["input_ids"]), *np.asarray(item["attention_mask"])]
    assert task.shard(1).x[4].tolist() == wanted
    reader = Reader()
    ids, mask = (torch.as_tensor(np.asarray(item[name]))[None] for name in NAMES)
    assert torch.equal(Packed(reader)(task.shard(1).x[4:5]), reader(ids, mask).logits)


def test_names_are_in_the_order_of_the_inputs():
    swapped = {**SETTINGS, "inputs": NAMES[::-1], "model": lambda: Packed(Reader(), NAMES[::-1])}
    task = from_dataset(Sentences(), **swapped)
    item = Sentences()[int(task.ids(0)[2])]
    assert task.shard(0).x[2].tolist() == [*item["attention_mask"], *item["input_ids"]]


def test_a_number_of_inputs_that_does_not_divide_is_refused():
    with pytest.raises(InvalidInput, match="a record has 5 numbers for input_ids, attention_mask"):
        from_dataset(Sentences(), **{**SETTINGS, "inputs": ["input_ids"]})


@pytest.mark.parametrize("value", ["a word", ["a", "b"], None])
def test_an_input_that_is_no_number_is_refused(value):
    items = [{"age": 1.0, "name": value, "label": row % 2} for row in range(9)]

    class Listed(Dataset[dict[str, Any]]):
        def __len__(self) -> int:
            return len(items)

        def __getitem__(self, row: int):
            return items[row]

    with pytest.raises(InvalidInput, match=r"'name' of item 0 .* is .*allowed: a number"):
        from_dataset(Listed(), inputs=["age", "name"], peers=2)


def test_a_model_without_an_adapter_is_not_saved_as_one(tmp_path):
    with pytest.raises(InvalidInput, match="the model Linear has no adapter of peft"):
        save_adapter(nn.Linear(2, 2), tmp_path)
