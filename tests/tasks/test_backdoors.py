"""The trigger is exactly where it should be, and poison is exactly what it should be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from unwalk.core.data import Held
from unwalk.core.errors import InvalidInput
from unwalk.tasks.forgetting import MODES, PLACES, SHAPES, Trigger, poison
from unwalk.tasks.sources import Scale, Source, Table

HEIGHT, WIDTH = 7, 9

# Set pixels of a 3 x 3 and of a 4 x 4 patch, row by row.
DRAWN = {
    ("square", 3): ["###", "###", "###"],
    ("square", 4): ["####"] * 4,
    ("cross", 3): [".#.", "###", ".#."],
    ("cross", 4): [".##.", "####", "####", ".##."],
    ("checkerboard", 3): ["#.#", ".#.", "#.#"],
    ("checkerboard", 4): ["#.#.", ".#.#", "#.#.", ".#.#"],
}
CORNER: dict[str, Callable[[int], tuple[int, int]]] = {
    "lower-right": lambda size: (HEIGHT - size, WIDTH - size),
    "lower-left": lambda size: (HEIGHT - size, 0),
    "upper-right": lambda size: (0, WIDTH - size),
    "upper-left": lambda size: (0, 0),
    "centre": lambda size: ((HEIGHT - size) // 2, (WIDTH - size) // 2),
}


def pictures(
    records: int = 5, channels: int = 2, scale: Scale | None = None, classes: int = 4
) -> Source:
    x = torch.rand(records, channels, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(1))
    y = torch.arange(records) % classes
    names = tuple(map(str, range(classes)))
    return Source("pictures", classes, Held(x, y), names, scale or Scale())


def test_every_shape_and_place_is_tested():
    assert {shape for shape, _ in DRAWN} == set(SHAPES)
    assert set(CORNER) == set(PLACES)


@pytest.mark.parametrize("place", CORNER)
@pytest.mark.parametrize(("shape", "size"), DRAWN)
def test_only_the_pixels_of_the_patch_change(shape, size, place):
    source = pictures()
    x = source.test.x
    before = x.clone()
    stamped = Trigger(shape, size, place, value=0.75).stamper(source)(x)

    top, left = CORNER[place](size)
    expected = before.clone()
    for i, row in enumerate(DRAWN[shape, size]):
        for j, cell in enumerate(row):
            if cell == "#":
                expected[:, :, top + i, left + j] = 0.75
    assert torch.equal(stamped, expected)
    assert torch.equal(x, before)


def test_brightness_is_in_pixels_of_every_channel():
    scale = Scale(mean=(0.5, 0.25), std=(0.25, 0.5))
    source = pictures(scale=scale)
    stamped = Trigger(size=2, value=1.0).stamper(source)(source.test.x)
    assert torch.all(stamped[:, 0, -2:, -2:] == 2.0)
    assert torch.all(stamped[:, 1, -2:, -2:] == 1.5)
    assert torch.allclose(scale.pixels(stamped)[:, :, -2:, -2:], torch.ones(()))


def test_pictures_without_channels_are_stamped_too():
    x = torch.zeros(3, 4, 4)
    source = Source("flat", 2, Held(x, torch.zeros(3).long()), ("a", "b"), Scale())
    assert Trigger(size=2).stamper(source)(x).sum() == 3 * 4


@pytest.mark.parametrize(
    ("trigger", "words"),
    [
        (Trigger(size=8), r"trigger.size is 8; the pictures have 7 x 9 pixels, .* 1 to 7"),
        (Trigger(target=4), r"trigger.target is 4; allowed: a class from 0 to 3"),
    ],
)
def test_a_trigger_that_does_not_fit_is_refused(trigger, words):
    with pytest.raises(InvalidInput, match=words):
        trigger.stamper(pictures())


def test_only_pictures_can_be_stamped():
    x = torch.zeros(3, 5)
    source = Source("rows", 2, Held(x, torch.zeros(3).long()), ("a", "b"))
    with pytest.raises(InvalidInput, match=r"the inputs of 'rows' have shape \(5,\)"):
        Trigger().stamper(source)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"shape": "sqare"}, r"trigger.shape is 'sqare' \(did you mean square\?\)"),
        ({"place": "center"}, r"trigger.place is 'center' \(did you mean centre\?\)"),
        ({"size": 0}, "trigger.size is 0"),
        ({"value": 1.5}, r"trigger.value is 1.5; allowed: a number in \[0, 1\]"),
        ({"target": -1}, "trigger.target is -1"),
        ({"mode": "swap"}, "trigger.mode is 'swap'; allowed: add, replace"),
    ],
)
def test_bad_settings_are_named(setting, words):
    with pytest.raises(InvalidInput, match=words):
        Trigger(**setting)


def labelled(labels: list[int]) -> Table:
    y = torch.tensor(labels)
    return Table(torch.arange(len(y))[:, None].float(), y, np.arange(len(y)) + 100)


def test_replacing_relabels_records_of_other_classes():
    table = labelled([0, 1, 2, 0, 1, 2, 0, 1])
    poisoned, rows = poison(table, 4, Trigger(target=0), np.random.default_rng(0))
    assert len(poisoned) == len(table)
    assert len(rows) == 4
    assert torch.all(table.y[torch.from_numpy(rows)] != 0)
    assert torch.all(poisoned.y[torch.from_numpy(rows)] == 0)
    others = np.setdiff1d(np.arange(8), rows)
    assert torch.equal(poisoned.y[others], table.y[others])
    assert torch.equal(poisoned.x, table.x)
    assert table.y.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]


def test_adding_keeps_the_originals_and_copies_behind_them():
    table = labelled([0, 1, 2, 0, 1, 2, 0, 1])
    poisoned, rows = poison(table, 3, Trigger(target=2, mode="add"), np.random.default_rng(0))
    assert rows.tolist() == [8, 9, 10]
    assert torch.equal(poisoned.x[:8], table.x)
    assert torch.equal(poisoned.y[:8], table.y)
    assert poisoned.y[8:].tolist() == [2, 2, 2]
    copied = poisoned.x[8:, 0].long()
    assert len(set(copied.tolist())) == 3
    assert torch.all(table.y[copied] != 2)
    assert poisoned.ids[8:].tolist() == [f"{100 + i}+poison" for i in copied.tolist()]
    assert len(set(poisoned.ids)) == 11


@pytest.mark.parametrize("mode", MODES)
def test_records_of_the_target_are_taken_when_no_others_are_left(mode):
    table = labelled([0, 0, 1, 0])
    poisoned, rows = poison(table, 3, Trigger(target=0, mode=mode), np.random.default_rng(0))
    origin = rows if mode == "replace" else poisoned.x[torch.from_numpy(rows), 0].long().numpy()
    assert 2 in origin
    assert len(set(origin.tolist())) == 3


def test_poison_is_drawn_from_the_generator():
    table = labelled([1] * 50)
    drawn = [poison(table, 5, Trigger(), np.random.default_rng(s))[1].tolist() for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
