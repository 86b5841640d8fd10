"""Datasets of Hugging Face's own package, which is installed for this test alone."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.conftest import ROOT
from tests.tasks.environments import environment

PROGRAM = """
import numpy as np
import torch
import unwalk
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as Picture

rows, labels = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 3
own = {"peers": 4, "seed": 3, "classes": 3, "forget": unwalk.Deletion("records", size=2)}
arrays = unwalk.from_arrays(rows, labels, **own)
plain = Dataset.from_dict({"features": rows.tolist(), "label": labels.tolist()})
forms = (plain, *map(plain.with_format, ("torch", "numpy")), plain.to_iterable_dataset())
for same in forms:
    task = unwalk.from_dataset(same, **own)
    print(all(torch.equal(task.shard(v).x, arrays.shard(v).x) for v in range(4)))

kinds = {"age": Value("int64"), "hours": Value("float32")}
kinds["income"] = ClassLabel(names=["low", "high"])
census = {"age": list(range(60)), "hours": [k % 7 for k in range(60)]}
census["income"] = [k % 2 for k in range(60)]
parts = Dataset.from_dict(census, features=Features(kinds)).train_test_split(0.2, seed=0)
train, named = parts["train"], {"inputs": ["age", "hours"], "label": "income", "peers": 3}
names = train.features["income"].names
task = unwalk.from_dataset(train, test=parts["test"], labels=names, **named)
print(task.source.labels, tuple(task.test.x.shape))

pictures = [Picture.fromarray(np.full((8, 8), 5 * k, np.uint8)) for k in range(40)]
kinds = Features({"image": Image(), "label": Value("int64")})
drawn = Dataset.from_dict({"image": pictures, "label": [k % 2 for k in range(40)]}, features=kinds)
task = unwalk.from_dataset(drawn, peers=2, classes=2)
print(tuple(task.shard(0).x.shape), float(task.test.x.max()) <= 1.0)
"""


@pytest.mark.soak
def test_datasets_of_hugging_face_are_read(tmp_path):
    python = environment(tmp_path / "env", "datasets")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run([python, "-c", PROGRAM], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = ["True"] * 4 + ["('low', 'high') (12, 2)", "(16, 1, 8, 8) True"]
    assert done.stdout.splitlines() == told
