"""Adapters of ``peft`` on networks of ``transformers`` as tokens: the docs' example, and peers.

The packages are no part of the development environment (176 MB, 12 of them, ten seconds to import):
the long test installs them into an environment of its own and runs the others there.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.checks.test_snippets import Block, blocks
from tests.conftest import ROOT
from tests.peers.deletions import ask, check, ended, hamlet, trained_on
from tests.tasks.environments import environment
from unwalk.certificates import read_certificate, verify
from unwalk.core.outside import travelling
from unwalk.core.token import Layout
from unwalk.core.transcript import Transcript

PAGE = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
NOTE = "<!-- not run: needs unwalk[transformers]; tests/tasks/test_transformers.py runs it -->\n"
PEERS = "tests.tasks.own_transformers:reader"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "transformers and peft are not installed; the long test installs them"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("transformers", "peft"):
        pytest.importorskip(name, reason=why)


def example() -> Block:
    """The block of the docs that runs here only."""
    (text,) = re.findall(f"{re.escape(NOTE)}(```python\n.*?```)", PAGE, re.DOTALL)
    (block,) = blocks(text)
    return block


def rows() -> list[list[str]]:
    """The table of bytes in the docs, without its head."""
    table = PAGE.split("| network | frozen parameters |", 1)[1].split("\n\n")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


def number(text: str) -> int:
    return int(text.partition(", ")[0].replace(",", ""))


@pytest.mark.filterwarnings("default")
def test_the_example_forgets_exactly_and_peft_loads_its_adapter(installed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(example().text, "tasks.md", "exec"), names)
    again, packed = names["again"], names["result"].model

    x = names["task"].test.x
    ids, mask = x.long().chunk(2, 1)
    with torch.no_grad():
        wanted = packed.eval()(x)
        assert torch.equal(again.eval()(input_ids=ids, attention_mask=mask).logits, wanted)
        begun = names["model"]().eval()
        assert not torch.equal(begun(x), wanted)
        begun.load_state_dict(load_file("runs/adapter/model.safetensors"))
        assert torch.equal(begun(x), wanted)
    assert {"adapter_model.safetensors", "adapter_config.json"} <= set(os.listdir("adapter"))

    transcript = Transcript.read(Path("runs/adapter/transcript.jsonl"))
    document = read_certificate(Path("runs/adapter/certificate.json"))
    raw = Path("runs/adapter/model.safetensors").read_bytes()
    assert verify(document, transcript, model=raw).problems == ()
    (hop_bytes,) = {hop.nbytes for hop in transcript.hops if hop.path}
    frozen = document["parameters"]["frozen"]
    told = rows()[0]
    counted = [frozen, Layout.of(packed).size, hop_bytes]
    assert counted == [number(told[k]) for k in (1, 3, 4)]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("row", "rank"), [(1, 4), (2, 8)])
def test_bytes_of_a_large_network_follow_from_its_shapes(installed, row, rank):
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    shapes = LlamaConfig(
        vocab_size=128_256,
        hidden_size=2048,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=8192,
        tie_word_embeddings=True,
    )
    lora = LoraConfig(task_type="CAUSAL_LM", r=rank, target_modules=["q_proj", "v_proj"])
    with torch.device("meta"):
        model = get_peft_model(LlamaForCausalLM(shapes), lora)
    trained = Layout.of(model).size
    frozen = sum(p.numel() for p in model.parameters()) - trained
    per_hop = 4 * trained + sum(b.nbytes for b in travelling(model).values())
    assert [number(rows()[row][k]) for k in (1, 3, 4)] == [frozen, trained, per_hop]


@pytest.mark.filterwarnings("default")
def test_peers_forget_exactly_with_an_adapter_as_the_token(installed, tmp_path):
    async def script(here):
        await here.until(here.trained)
        ask(here, 2, "a", trained_on(here, 2)[0], grade="exact")
        await here.until(ended(here, a=2))

    settings = {"train__hops": 4, "unlearn__hops": 2}
    here = hamlet(tmp_path, script, peers=3, model__name=PEERS, **settings)
    document = check(here, 2, "chapter-1")
    assert [claim["grade"] for claim in document["claims"]] == ["exact"]
    assert document["method"] == "rewind"
    digest = here.network.settings["model.frozen_digest"]
    assert document["parameters"]["frozen_digest"] == digest


@pytest.mark.soak
def test_the_others_pass_where_the_packages_are_installed(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["optional-dependencies"]["transformers"]
    python = environment(tmp_path / "env", *wanted)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=1200", __file__]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^4 passed, 1 deselected", done.stdout, re.MULTILINE), done.stdout
