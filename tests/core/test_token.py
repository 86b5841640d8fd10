import pytest
import torch
from torch import nn

from unwalk.core.errors import Corrupt, InvalidInput
from unwalk.core.token import Layout, Token, Workspace, build_model


def token():
    return Token(
        parameters=torch.arange(6, dtype=torch.float32),
        buffers={"bn.running_mean": torch.ones(2), "bn.count": torch.tensor(3)},
        moments={"momentum": torch.full((6,), 2.0)},
        kept={"average": torch.zeros(6)},
        optimizer_steps=9,
        hop=4,
        at=2,
        memory={"visits": 1},
    )


def test_bytes_round_trip_is_exact():
    before = token()
    after = Token.from_bytes(before.to_bytes())
    assert after.header() == before.header()
    assert {k: v.tolist() for k, v in after.tensors().items()} == {
        k: v.tolist() for k, v in before.tensors().items()
    }
    assert after.digest() == before.digest()
    assert before.to_bytes() == after.to_bytes()


@pytest.mark.parametrize("data", [b"", b"12345678", b"\x00" * 100, b"\xff" * 64])
def test_foreign_bytes_are_refused(data):
    with pytest.raises(Corrupt, match="not a token"):
        Token.from_bytes(data)


def test_truncated_bytes_are_refused():
    with pytest.raises(Corrupt, match="not a token"):
        Token.from_bytes(token().to_bytes()[:-3])


@pytest.mark.parametrize("change", ["parameters", "buffers", "moments", "header", "salt"])
def test_digest_sees_every_part(change):
    base, other, salt = token(), token(), b""
    if change == "parameters":
        other.parameters[3] += 1e-6
    elif change == "buffers":
        other.buffers["bn.count"].add_(1)
    elif change == "moments":
        other.moments["momentum"][0] = 0
    elif change == "header":
        other = Token(**{**base.__dict__, "hop": 5})
    else:
        salt = b"salt"
    assert other.digest(salt) != base.digest()


def test_workspace_parameters_are_views_of_one_vector():
    work = Workspace(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    work.parameters.zero_()
    assert all(not p.detach().any() for p in work.model.parameters())
    work.model(torch.ones(5, 3)).sum().backward()
    assert work.gradient[-2:].tolist() == [5.0, 5.0]
    assert work.layout.size == 26


def test_a_state_knows_how_many_bytes_its_token_has():
    work = Workspace(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    for group in (work.moments, work.kept, work.sums):
        group["one"] = torch.zeros(5, dtype=torch.float64)
        assert work.nbytes == work.token(hop=0, at=0, memory={}).nbytes


def test_workspace_refuses_a_token_of_another_shape():
    with pytest.raises(Corrupt, match="6 parameters"):
        Workspace(nn.Linear(3, 2)).load(token())


def test_models_without_or_with_mixed_parameters_are_refused():
    with pytest.raises(InvalidInput, match="no trainable parameters"):
        Layout.of(nn.ReLU())
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.float64))
    with pytest.raises(InvalidInput, match="mixes parameter types"):
        Layout.of(mixed)


def test_building_a_model_leaves_global_randomness_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = build_model(lambda: nn.Linear(3, 3), 1)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.weight, build_model(lambda: nn.Linear(3, 3), 1).weight)
