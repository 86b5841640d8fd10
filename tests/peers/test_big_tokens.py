"""Tokens of any size: what a peer needs of memory and time for them follows from the network."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.big_tokens import SIZES, TOKENS, measure
from tests.peers.harness import SETTINGS, Village, check_end, lived
from unwalk.core.errors import InvalidInput
from unwalk.core.token import PIECE, Token, Workspace
from unwalk.peers import provision
from unwalk.peers.handover.visit import WORDS, Work, assembled_of, plan_of, token_size
from unwalk.peers.identity.network_file import Limits
from unwalk.peers.storage.token_files import (
    TokenFile,
    check_token,
    open_token,
    shapes_of,
    token_pieces,
)

PAGES = 4 * PIECE
"""Bytes of a piece of a token."""


def mapped() -> int:
    """Bytes of files that this process has in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssFile:"):
            return 1024 * int(line.split()[1])
    pytest.skip("this system does not say")


@dataclass(frozen=True, eq=False)
class Watched(TokenFile):
    """A token file that notes how much is in memory whenever some is let go."""

    seen: list[int] = field(default_factory=list)

    def give_back(self) -> None:
        self.seen.append(mapped())
        super().give_back()


def written(path: Path, token: Token) -> Watched:
    with path.open("wb") as file:
        for piece in token_pieces(token):
            file.write(piece)
    found = open_token(path, 2)
    return Watched(found.header, found.tensors, found.held)


def test_a_token_is_checked_and_loaded_with_little_of_its_file_in_memory(tmp_path):
    space = Workspace(nn.Linear(4000, 4000), "cpu", {})
    space.moments = {"momentum": torch.rand(space.parameters.shape)}
    token = space.token(hop=3, at=1, memory={}).clone()
    file = written(tmp_path / "token", token)
    assert len(file.held) > 7 * PAGES
    before = mapped()
    check_token(file, shapes_of(token))
    space.parameters.zero_()
    space.load(file.token(), file.give_back)
    assert len(file.seen) > 14
    assert max(file.seen) - before < 1.5 * PAGES
    assert mapped() - before < PAGES
    for name, tensor in space.token(hop=3, at=1, memory={}).tensors().items():
        assert torch.equal(tensor, token.tensors()[name]), name


@pytest.mark.parametrize("place", [0, PIECE + 1, -1])
def test_a_value_that_is_wrong_is_found_in_every_piece(tmp_path, place):
    token = Workspace(nn.Linear(3000, 3000), "cpu", {}).token(hop=3, at=1, memory={}).clone()
    assert token.parameters.numel() > 2 * PIECE
    token.parameters[place] = float("nan")
    with pytest.raises(Exception, match="not finite"):
        check_token(written(tmp_path / "nan", token), shapes_of(token))
    token.parameters[place] = -8.0
    with pytest.raises(Exception, match="holds -8; allowed: -7 to 7"):
        check_token(written(tmp_path / "large", token), shapes_of(token), 7.0)


def made(folder: Path, **more):
    addresses = ["localhost:1", "localhost:2"]
    return provision.make_network(
        folder, name="n", addresses=addresses, settings=SETTINGS, bundles=False, **more
    )


def test_the_lease_is_long_enough_for_the_token(tmp_path):
    size = token_size(assembled_of(made(tmp_path / "usual")))
    assert made(tmp_path / "short").limits.lease == 30.0
    slow = {"rate": size / 45.0}
    assert made(tmp_path / "slow", limits=slow).limits.lease == 90.0
    with pytest.raises(InvalidInput, match=r"lease is 30 s; allowed: 90 s or more.*--lease 90"):
        made(tmp_path / "refused", limits={"lease": 30.0, **slow})
    with pytest.raises(InvalidInput, match="lease is 30 s; allowed: 90 s or more"):
        made(tmp_path / "refused", limits=Limits(**slow))
    assert not (tmp_path / "refused").exists()


def test_no_token_of_a_walk_is_larger_than_the_least_limit_that_is_allowed(tmp_path):
    """The file of a token is larger than its tensors."""

    async def walk(village: Village) -> None:
        for peer in range(2):
            village.start(peer)
        await village.until(village.finished)

    village = lived(tmp_path, walk, 2, train__optimizer="adam")
    check_end(village.folder, village.network, range(2))
    files = list(village.folder.glob("*/store/tokens/*.safetensors"))
    assert files
    assert max(f.stat().st_size for f in files) <= token_size(assembled_of(village.network))


def test_a_peer_takes_what_its_model_makes_of_a_token_and_no_more(tmp_path):
    work = Work(plan_of(made(tmp_path / "net")), 0)
    token = work.space.token(hop=3, at=1, memory={})
    most = replace(token, moments={"momentum": token.parameters})
    size = sum(map(len, token_pieces(most)))
    assert size <= work.most_bytes <= size + WORDS


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", SIZES)
def test_big_tokens_between_daemons(size, tmp_path, monkeypatch):
    """Real daemons: the simulator's bits, and memory within the limit; time is the benchmark's."""
    monkeypatch.setenv("UNWALK_BENCH_DIR", str(tmp_path))
    assert measure(size, hops=4).memory <= TOKENS
