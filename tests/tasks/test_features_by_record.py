"""A record's features are the same to the last bit, whatever other records are there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unwalk.tasks import a9a, heart
from unwalk.tasks.cifar10 import SCALE
from unwalk.tasks.declared import Declared
from unwalk.tasks.digits import flattened
from unwalk.tasks.gabor import GaborMap
from unwalk.tasks.mnist import inputs
from unwalk.tasks.tables import Columns, read_csv

RECORDS = 37


def pictures(side, channels=1):
    return torch.from_numpy(
        np.random.default_rng(1).random((RECORDS, channels, side, side), np.float32)
    )


def declared(x):
    made = Declared((300,), Columns(labels=("a", "b")), norm=1.0)
    return torch.from_numpy(made.inputs(x.numpy(), None))  # type: ignore[arg-type]


def patients(x):
    lines = [",".join(f"{50 * v:.0f}" for v in row[:13]) + ",0" for row in x.tolist()]
    known = [_possible(line) for line in lines]
    return heart.parse("\n".join(known).encode(), "va").x


def _possible(line):
    """The measurements of a line, with categories that there are."""
    cells = line.split(",")
    for place, value in ((1, 1), (2, 3), (5, 0), (6, 1), (8, 1), (10, 2), (12, 3)):
        cells[place] = str(value)
    return ",".join(cells)


def census(x):
    lines = [
        "+1 " + " ".join(f"{k + 1}:1" for k in sorted({int(120 * v) for v in row[:9]}))
        for row in x.tolist()
    ]
    return a9a.parse("\n".join(lines).encode(), "a9a", len(lines))[0]


def table(x, tmp_path):
    path = tmp_path / "records.csv"
    rows = [f"{a!r},{b!r},a" for a, b in x[:, :2].tolist()]
    path.write_text("one,two,label\n" + "\n".join(rows) + "\n")
    return torch.from_numpy(read_csv(path, Columns(scale={"one": (0.3, 0.7)})).x)


MAPS = {
    "gabor": (GaborMap(), pictures(28)),
    "gabor, random waves": (GaborMap(cosines=200), pictures(28)),
    "gabor in colour": (GaborMap(cosines=50), pictures(12, 3)),
    "digits-flat": (flattened, pictures(8)),
    "mnist": (lambda x: inputs((255 * x).to(torch.uint8), SCALE), pictures(8, 3)),
    "records, shortened": (declared, 3 * pictures(20).flatten(1)[:, :300]),
    "heart": (patients, pictures(6).flatten(1)),
    "a9a": (census, pictures(6).flatten(1)),
}


@pytest.mark.parametrize("name", MAPS)
def test_other_records_have_no_part_in_the_bits(name):
    features, x = MAPS[name]
    check(features, x)


def test_nor_in_those_of_a_table(tmp_path):
    check(lambda x: table(x, tmp_path), pictures(6).flatten(1))


def check(features, x):
    whole = features(x)
    rng = np.random.default_rng(7)
    for gone in (1, 2, 5, RECORDS - 1):
        kept = torch.from_numpy(np.sort(rng.permutation(RECORDS)[gone:]))
        assert torch.equal(features(x[kept]), whole[kept]), f"without {gone} records"
    other = x.clone()
    other[3:9] = torch.from_numpy(rng.random(other[3:9].shape, np.float32))
    same = torch.cat([torch.arange(3), torch.arange(9, RECORDS)])
    assert torch.equal(features(other)[same], whole[same]), "with others replaced"
    order = torch.from_numpy(rng.permutation(RECORDS))
    assert torch.equal(features(x[order]), whole[order]), "in another order"
