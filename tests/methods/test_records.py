"""A method is its record: what stands in the registry can be set, listed, walked and claimed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from tests.runs.small import small, small_run
from unwalk import walks
from unwalk.core.errors import InvalidInput
from unwalk.core.plan import Phase
from unwalk.core.program import Program, Visit
from unwalk.methods import METHODS, defaults
from unwalk.methods.network_sgd import Descending, unlearn_descent
from unwalk.methods.record import Decided, Guarantee, MethodRecord, Request, ThreatModel
from unwalk.methods.restart import wiping
from unwalk.privacy.exact import fresh_claim
from unwalk.settings.config import Config, flatten, setting, to_toml


@dataclass(frozen=True)
class AgainSettings:
    """A made-up method that begins again and goes over each visit's records several times."""

    key: ClassVar[str] = "again"
    times: int = setting(1, "passes at each visit", low=1)
    order: str = setting("forth", "forth or back", choices=("forth", "back"))


@dataclass(frozen=True)
class Again(Descending):
    times: int
    name: str = field(default="again", init=False)

    def visit(self, visit: Visit) -> Program:
        passes = [self.descent.program(visit, "retained") for _ in range(self.times)]
        return wiping(visit, tuple(op for program in passes for op in program))


def _phase(config: Config, decided: Decided) -> Phase:
    method = Again(unlearn_descent(config), config.of(AgainSettings).times)
    return Phase("unlearn", method, walks.Uniform(), decided.hops, start="initial")


RECORD = MethodRecord(
    name="again",
    description="made up",
    phase=_phase,
    settings=AgainSettings,
    decide=lambda request: Decided(hops=0 if request.trained is None else len(_hops(request))),
    guarantee=Guarantee(
        "exact",
        fresh_claim,
        ThreatModel("the test", "none"),
        "a run without the forgotten records",
    ),
    facts=lambda config, records, p: {"p": 0.25},
)


def _hops(request: Request) -> list[object]:
    assert request.trained is not None
    return [hop for hop in request.trained.hops if hop.hop > 2]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(METHODS, "again", RECORD)


def test_one_entry_in_the_registry_is_all_that_a_method_needs():
    result = small_run(method="again", again__times=3, compare="none")
    phase = result.transcript.header["phases"][-1]
    assert phase == {"name": "unlearn", "method": "again", "hops": 4}, "training's six but two"
    last = result.transcript.hops[-1]
    assert sum(event.kind == "gradient-steps" for event in last.events) == 3
    document = result.result["certificate"]["document"]
    assert document["claims"][-1]["grade"] == "exact"
    assert document["threat_model"]["observers"] == "the test"
    assert document["certifier"] == "a run without the forgotten records"
    assert document["parameters"]["p"] == 0.25


def test_a_methods_own_settings_are_settings_like_all_others():
    config = small(again__times=3)
    assert flatten(defaults())["again.order"] == "forth"
    assert '\n[again]\ntimes = 3\norder = "forth"\n\n[forget]\n' in to_toml(config)
    with pytest.raises(InvalidInput, match=r"again\.times is 0"):
        small(again__times=0)
    with pytest.raises(InvalidInput, match=r"again\.order is 'up'; allowed: back, forth"):
        small(again__order="up")
    with pytest.raises(InvalidInput, match=r"the command line sets again\.times to 'x'"):
        small(again__times="x")


def test_sections_keep_their_place_when_a_method_is_added():
    """The digest of settings names runs, so that the order of what was there may not change."""
    keys = [section.key for section in defaults().own]
    assert keys == [
        *("ddp", "dpsgd", "seal", "rewind", "restart", "sums", "noisy_start", "noisy_finetune"),
        *("output_noise", "pga", "neggrad", "user_dp", "langevin"),
        *("ssd", "salun", "scrub", "newton", "residual", "again"),
    ]
