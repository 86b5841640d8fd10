"""What is measured, on cases small enough to count by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.runs.small import small_run
from unwalk.core.data import Held
from unwalk.core.errors import Diverged
from unwalk.core.transcript import Hop, Transcript
from unwalk.runs.metrics import Meter, Reading, answers, confidences, cost, gap, matched


class Echo(nn.Module):
    """Answers with the class that stands in the input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(x.long().flatten(), 4).float()


def held(said: list[int], true: list[int]) -> Held:
    return Held(torch.tensor(said).float().view(-1, 1), torch.tensor(true))


def meter(**sets: object) -> Meter:
    nothing = held([], [])
    task: dict[str, object] = {"test": nothing, "forgotten": nothing, "retained": nothing}
    task |= {"triggered": None, "target": None, "predicts": "class", **sets}
    return Meter(SimpleNamespace(**task), torch.device("cpu"))  # type: ignore[arg-type]


def reading(hop: int, clean: float, asr: float | None = None, **more: object) -> Reading:
    given = {"phase": "unlearn", "forget": None, "retain": None, "asr_paper": asr, **more}
    return Reading(hop=hop, clean=clean, asr=asr, **given)  # type: ignore[arg-type]


def test_accuracies_are_shares_of_right_answers():
    found = meter(
        test=held([0, 1, 2, 3], [0, 1, 2, 0]),
        forgotten=held([1, 1], [0, 1]),
        retained=held([3, 3, 3, 3, 3], [3, 3, 3, 3, 0]),
    ).read(Echo(), 7, "train")
    assert found == Reading(7, "train", 0.75, 0.5, 0.8, None, None)


def test_asr_leaves_the_target_class_out_and_asr_paper_does_not():
    # Ten triggered pictures, target 0: two are of the target class and answered with it; of the
    # eight others three are.
    said = [0, 0, 0, 0, 0, 1, 1, 2, 2, 3]
    true = [0, 0, 1, 2, 3, 1, 1, 2, 2, 3]
    found = meter(test=held([0], [0]), triggered=held(said, true), target=0).read(Echo(), 1, "x")
    assert found.asr == pytest.approx(3 / 8)
    assert found.asr_paper == pytest.approx(5 / 10)


def test_a_model_that_ignores_the_trigger_has_a_floor_in_asr_paper_only():
    true = [0, 1, 2, 3] * 5
    found = meter(test=held([0], [0]), triggered=held(true, true), target=0).read(Echo(), 1, "x")
    assert (found.asr, found.asr_paper) == (0.0, 0.25)


def test_measuring_leaves_the_model_in_evaluation_mode():
    model = Echo().train()
    meter(test=held([0], [0])).read(model, 1, "train")
    assert not model.training


def test_confidence_is_the_softmax_of_the_answer():
    (found,) = confidences(nn.Identity(), torch.tensor([[0.0, 2.0]]))
    assert found["answer"] == 1
    assert found["confidence"] == pytest.approx(0.880797, abs=1e-6)


@pytest.mark.parametrize("look", [answers, confidences])
def test_outputs_that_are_not_finite_are_not_counted_as_answers(look):
    with pytest.raises(Diverged, match="outputs are not finite"):
        look(nn.Identity(), torch.tensor([[0.0, 1.0], [float("nan"), 0.0]]))


def test_gap_is_the_difference_to_retraining():
    mine = reading(9, 0.91, 0.02, forget=0.5)
    oracle = reading(9, 0.93, 0.05, forget=0.75)
    assert gap(mine, None) is None
    found = gap(mine, oracle)
    assert found is not None
    assert found == pytest.approx({"clean": -0.02, "asr": -0.03, "forget": -0.25})
    assert gap(reading(9, 0.9), reading(9, 0.9)) == {"clean": 0.0, "asr": None, "forget": None}


def test_matched_counts_hops_from_when_it_stays_level():
    series = [
        reading(10, 0.99, 0.00, phase="train"),
        reading(11, 0.90, 0.90),
        reading(12, 0.95, 0.04),
        reading(13, 0.93, 0.05),
        reading(14, 0.945, 0.20),
        reading(15, 0.95, 0.05),
        reading(16, 0.96, 0.00),
    ]
    oracle = reading(20, 0.95, 0.01)
    found = matched(series, "unlearn", 10, oracle)
    assert found == {"clean_hop": 4, "forget_hop": 5}
    assert matched(series, "unlearn", 10, None) == {"clean_hop": None, "forget_hop": None}
    never = matched(series, "unlearn", 10, reading(20, 0.99, -0.1))
    assert never == {"clean_hop": None, "forget_hop": None}


def test_matched_looks_at_forget_accuracy_where_there_is_no_backdoor():
    series = [reading(1, 0.9, forget=0.9), reading(2, 0.9, forget=0.5)]
    oracle = reading(2, 0.9, forget=0.46)
    assert matched(series, "unlearn", 0, oracle) == {"clean_hop": 1, "forget_hop": 2}


def test_cost_counts_relays_and_only_the_phases_asked_for():
    transcript = Transcript({})
    moves = [("train", -1, 2, ()), ("unlearn", 2, 0, (1, 0)), ("unlearn", 0, 0, ())]
    for number, (phase, sender, receiver, path) in enumerate(moves, 1):
        transcript.add(
            Hop(
                hop=number,
                phase=phase,
                phase_hop=1,
                sender=sender,
                receiver=receiver,
                path=path,
                nbytes=100 * len(path),
                events=(),
                gradients=8,
            )
        )
    assert cost(transcript, ["unlearn"], 0) == {
        "hops": 2,
        "visits_to_unlearner": 2,
        "messages": 2,
        "bytes": 200,
        "gradients": 16,
    }
    assert cost(transcript, ["train", "unlearn"], 0)["hops"] == 3


def test_a_restart_on_a_ring_pays_for_its_relays():
    result = small_run(peers=6, graph__kind="ring", unlearn__p=0.5, unlearn__hops=12, compare=[])
    (method,) = result.result["methods"]
    walk = [w for w in result.result["walk"] if w["phase"] == "unlearn"]
    messages = sum(len(w["path"]) for w in walk)
    assert messages > sum(bool(w["path"]) for w in walk), "no hop was relayed"
    # 16 features and 4 classes: 68 parameters and as many momenta, 4 bytes each.
    assert method["cost"]["messages"] == messages
    assert method["cost"]["bytes"] == messages * 2 * 68 * 4
    assert method["cost"]["visits_to_unlearner"] == sum(w["receiver"] == 0 for w in walk)
    assert method["cost"]["hops"] == 12


class Numbers(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_numbers_are_scored_by_r_squared_on_the_scale_of_the_test_set():
    test = Held(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0.0, 2.0, 4.0]).double())
    off = Held(torch.tensor([[1.0]]), torch.tensor([5.0]).double())
    found = meter(test=test, forgotten=off, predicts="number").read(Numbers(), 1, "x")
    spread = 8.0 / 3.0
    assert found.clean == pytest.approx(1.0 - (1.0 / 3.0) / spread)
    assert found.forget == pytest.approx(1.0 - 16.0 / spread)


def test_labels_are_scored_by_f1():
    marks = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    said = torch.tensor([[2.0, 1.0], [3.0, -1.0], [-1.0, -1.0]])
    none = Held(said[2:], marks[2:])
    found = meter(test=Held(said, marks), forgotten=none, predicts="labels").read(Numbers(), 1, "x")
    assert found.clean == pytest.approx(2 / 3)  # two hits, one false alarm, one miss
    assert found.forget == 1.0, "nothing to name, and nothing named"
