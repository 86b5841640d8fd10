"""Each rival method against the property that defines it (float64, unless a whole run is made)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.methods.test_seal import FLAT
from tests.runs.small import small, small_run
from tests.tiny import TinyTask, descent, linear, plan
from unwalk import walks
from unwalk.certificates.conditions import check_bounded
from unwalk.core.errors import InvalidInput, Refused
from unwalk.core.noise import SimulatedNoise
from unwalk.core.plan import Local, Phase
from unwalk.core.program import AddNoise, Ball, Project, StepRule, Visit
from unwalk.core.token import Workspace, build_model
from unwalk.engines.execute import Bench, execute
from unwalk.engines.inprocess import InProcess
from unwalk.methods.langevin import Langevin
from unwalk.methods.neggrad import NegGrad
from unwalk.methods.network_sgd import Descent, LocalWork, NetworkSGD, Schedule
from unwalk.methods.newton import Newton
from unwalk.methods.noisy_start import NoisyStart
from unwalk.methods.pga import PGA
from unwalk.methods.residual import Logging, Residual
from unwalk.methods.rrdu import Correction
from unwalk.methods.salun import SalUn
from unwalk.methods.scrub import Scrub
from unwalk.methods.ssd import SSD
from unwalk.methods.user_dp import UserDP
from unwalk.privacy.accountants import training_claim
from unwalk.privacy.gaussian import gaussian_epsilon
from unwalk.runs.assemble import assemble

U, M, SIZE = 0, 3, 8
TASK = TinyTask(forgotten={U: M})
FORGOTTEN, RETAINED = range(M), range(M, SIZE)


class At:
    """A model that visits work on, one after the other, from the same public start."""

    def __init__(self, task: TinyTask = TASK, start: torch.Tensor | None = None) -> None:
        self.task, self.work = task, Workspace(build_model(task.model, 0))
        if start is not None:
            self.work.parameters.copy_(start)
        self.work.keep_start()
        self.locals: dict[int, Local] = {}
        self.hops = 0

    def visit(self, method: Any, peer: int = U, *, phase_hop: int | None = None) -> None:
        self.hops += 1
        local = self.locals.setdefault(peer, Local())
        visit = Visit(
            hop=self.hops,
            phase_hop=self.hops if phase_hop is None else phase_hop,
            peer=peer,
            at_unlearner=peer == U,
            records=self.task.records(peer),
            rng=np.random.default_rng(self.hops),
            earlier_in_phase=local.in_phase,
        )
        self.work.anchors["arrival"] = self.work.parameters.clone()
        bench = Bench(
            work=self.work,
            shard=self.task.shard(peer),
            local=local,
            noise=SimulatedNoise(0),
            loss=self.task.loss,
            hop=self.hops,
            peer=peer,
            generator=torch.Generator(),
        )
        execute(method.visit(visit), bench)
        local.in_phase += 1

    @property
    def theta(self) -> torch.Tensor:
        return self.work.parameters.clone()

    def loss(self, rows: range, peer: int = U) -> float:
        shard, index = self.task.shard(peer), torch.tensor(list(rows))
        with torch.no_grad():
            return float(functional.cross_entropy(self.work.model(shard.x[index]), shard.y[index]))

    def gradient(self, rows: range | list[int], peer: int = U) -> torch.Tensor:
        """Mean gradient over rows, by plain autograd."""
        work, shard = Workspace(build_model(self.task.model, 0)), self.task.shard(peer)
        work.parameters.copy_(self.theta)
        index = torch.tensor(list(rows))
        output = work.model(shard.x[index])
        if self.task.loss is None:
            functional.cross_entropy(output, shard.y[index]).backward()
        else:
            self.task.loss(output, shard.y[index]).mean().backward()
        return work.gradient.clone()


def trained() -> torch.Tensor:
    """A model that has learned all records."""
    (outcome,) = InProcess().run([plan(task=TASK)])
    return outcome.token.parameters.clone()


def fisher(at: At, rows: range, peer: int = U) -> torch.Tensor:
    """The diagonal of the empirical Fisher information, record by record."""
    squares = [at.gradient([row], peer).square() for row in rows]
    return torch.stack(squares).mean(0)


def test_skip_u_never_visits_u_and_so_never_uses_its_records():
    result = small_run(method="skip-u", compare="none", unlearn__hops=40)
    walk = [hop for hop in result.transcript.hops if hop.phase == "unlearn"]
    assert len(walk) == 40
    assert U not in {hop.receiver for hop in walk}
    assert all(U not in hop.path for hop in walk)
    assert result.result["claims"][-1]["code"] == "no-noise"


def test_output_noise_is_the_old_model_plus_the_noise_that_the_ledger_asks_for():
    result = small_run(FLAT, method="output-noise", compare="none")
    assembled = assemble(small(FLAT, method="output-noise", compare="none"))
    (before,) = InProcess().run([assembled.training()])
    walk = [hop for hop in result.transcript.hops if hop.phase == "unlearn"]
    assert [hop.receiver for hop in walk] == [U]
    assert walk[0].gradients == 0
    (noise,) = (event for event in walk[0].events if event.kind == "gaussian-noise")
    moved = result.walks["output-noise"].outcome.token.parameters - before.token.parameters
    scale = float(moved.norm()) / (noise.std * math.sqrt(moved.numel()))
    assert scale == pytest.approx(1.0, abs=0.15), "noise of this std on each of 650 parameters"
    claim = result.result["claims"][-1]
    assert claim["grade"] == "certified"
    assert claim["epsilon"] == pytest.approx(1.0, rel=1e-6)
    less = small_run(FLAT, method="output-noise", compare="none", output_noise__std=noise.std / 2)
    assert less.result["claims"][-1]["epsilon"] > 1.5


@pytest.mark.parametrize("radius", [0.05, 100.0])
def test_projected_ascent_climbs_the_forgotten_loss_inside_its_ball(radius):
    at = At(start=trained())
    before, start = at.loss(FORGOTTEN), at.theta
    rule = StepRule("sgd", learning_rate=0.2)
    ascent = Correction("forget", LocalWork(batch=1), rule, clip=1.0)
    at.visit(PGA(descent(), ascent, Ball("start", radius), passes=4))
    moved = float((at.theta - start).norm())
    assert at.loss(FORGOTTEN) > before
    assert moved <= radius
    assert (moved > 0.99 * radius) == (radius == 0.05), "the small ball holds it, the large not"


def test_neggrad_takes_the_difference_of_both_gradients():
    alpha, eta = 0.8, 0.1
    at = At(start=trained())
    start = at.theta
    expected = alpha * at.gradient(RETAINED) - (1 - alpha) * at.gradient(FORGOTTEN)
    at.visit(NegGrad(descent(batch=5, rate=eta), alpha))
    assert torch.allclose(at.theta, start - eta * expected, rtol=0, atol=1e-12)


def test_neggrad_takes_no_step_at_u_beyond_its_clip():
    clip, eta = 1e-3, 0.1
    at = At(start=trained())
    start = at.theta
    at.visit(NegGrad(descent(batch=5, rate=eta), 0.8, clip))
    assert float((at.theta - start).norm()) == pytest.approx(eta * clip, rel=1e-9)
    elsewhere, free = At(start=trained()), At(start=trained())
    elsewhere.visit(NegGrad(descent(batch=5, rate=eta), 0.8, clip), peer=1)
    free.visit(NegGrad(descent(batch=5, rate=eta), 0.8), peer=1)
    assert torch.equal(elsewhere.theta, free.theta), "other peers descend as ever"


def test_neggrad_raises_the_forgotten_loss_and_keeps_the_retained_one():
    at = At(start=trained())
    forgotten, retained = at.loss(FORGOTTEN), at.loss(RETAINED)
    method = NegGrad(descent(batch=5, rate=0.5), alpha=0.7)
    for _ in range(60):
        at.visit(method)
    assert at.loss(FORGOTTEN) > 2 * forgotten
    assert at.loss(RETAINED) < retained
    elsewhere = At(start=trained())
    elsewhere.visit(method, peer=1)
    twin = At(start=trained())
    twin.visit(NegGrad(descent(batch=5, rate=0.5), alpha=1.0), peer=1)
    assert torch.equal(elsewhere.theta, twin.theta), "no other peer has anything to climb"


def test_user_dp_shows_at_most_the_bound_of_a_visit_whatever_the_records():
    bound = 0.05
    method = UserDP(descent(rate=5.0), bound, std=0.0)
    program = method.visit(
        Visit(1, 1, U, True, TASK.records(U), np.random.default_rng(0))
    )  # fmt: skip
    assert [type(op) for op in program[1:]] == [Project, AddNoise]
    ends = []
    for peer in range(2):
        at = At()
        start = at.theta
        at.visit(method, peer)
        ends.append(at.theta)
        assert float((at.theta - start).norm()) <= bound
    assert float((ends[0] - ends[1]).norm()) <= 2 * bound


def test_user_dp_is_certified_for_a_network_by_the_visits_that_happened():
    result = small_run(
        method="user-dp", compare="none", model__name="mlp", user_dp__std=50.0, seed=2
    )
    at_u = [hop for hop in result.transcript.hops if hop.receiver == U]
    assert at_u
    mu = math.sqrt(len(at_u)) * 2.0 / 50.0
    claim = result.result["claims"][-1]
    assert claim["grade"] == "certified"
    assert claim["epsilon"] == pytest.approx(gaussian_epsilon(1e-5, mu), rel=1e-9)
    assert result.result["certificate"]["document"]["threat_model"]["training_time_view"]


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()


def test_user_dp_claims_nothing_of_batch_statistics_nor_of_visits_without_their_ball():
    method = UserDP(descent(), 1.0, std=5.0)
    (walked,) = InProcess().run([plan(_training(method), task=TASK)])
    assert training_claim(walked.transcript, [], 1e-5).grade == "certified"
    (buffered,) = InProcess().run([plan(_training(method), task=TinyTask(factory=normed))])
    with pytest.raises(Refused, match="num_batches_tracked") as refusal:
        training_claim(buffered.transcript, [], 1e-5)
    assert refusal.value.code == "travelling-state"
    (loose,) = InProcess().run([plan(_training(NoisyStart(descent(), 5.0)), task=TASK)])
    with pytest.raises(Refused, match="nothing bounds them") as refusal:
        training_claim(loose.transcript, [], 1e-5)
    assert refusal.value.code == "unbounded-step"
    with pytest.raises(Refused, match="1 hops were walked after the request"):
        training_claim(walked.transcript, walked.transcript.hops[-1:], 1e-5)
    more = Phase("more", NetworkSGD(descent()), walks.Fixed((U,)), 1)
    (longer,) = InProcess().run([plan(_training(method), more, task=TASK)])
    with pytest.raises(Refused, match="for training alone, in one phase") as refusal:
        training_claim(longer.transcript, [], 1e-5)
    assert refusal.value.code == "not-announced"


def _training(method: Any) -> Phase:
    return Phase("train", method, walks.Fixed((U, 1, U)), 3)


def test_langevin_steps_contract_and_stay_in_the_ball():
    """From opposite ends of the ball the same steps lead together, by the factor of each step."""
    radius, decay, steps = 3.0, 0.05, 10
    x = torch.tensor([float(TASK.shard(p).x.norm(dim=1).max()) for p in range(4)]).max()
    smooth = 0.5 * (float(x) ** 2 + 1.0)
    rule = StepRule("sgd", learning_rate=1.0 / (smooth + decay), weight_decay=decay)
    quiet = Descent(rule, LocalWork("iid", batch=4, minibatches=steps), Schedule())
    method = Langevin(quiet, Ball("origin", radius))
    torch.manual_seed(0)
    end = torch.randn(8, dtype=torch.float64)
    ends = []
    for sign in (10.0, -10.0):
        at = At(start=sign * end)
        for hop in range(4):
            at.visit(method, peer=hop)
            assert float(at.theta.norm()) <= radius
        ends.append(at.theta)
    factor = 1.0 - rule.learning_rate * decay
    assert float((ends[0] - ends[1]).norm()) <= 2 * radius * factor ** (4 * steps)


def test_langevin_states_its_number_as_nominal_and_nothing_else():
    result = small_run(FLAT, method="langevin", compare="none", train__hops=2)
    stated, last = result.result["claims"]
    assert (stated["grade"], stated["epsilon"], last["grade"]) == ("nominal", 1.0, "refused")
    assert "convex" in stated["reason"]
    steps = [e for h in result.transcript.hops[2:] for e in h.events if e.kind == "gradient-steps"]
    assert sum(event.steps for event in steps) == 4 * 20
    assert not any(event.touched for event in steps)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (1.3, 0.5)])
def test_ssd_dampens_what_matters_more_to_the_forgotten_by_its_rule_and_nothing_else(alpha, beta):
    at = At(start=trained())
    start = at.theta
    everybody = sum(fisher(at, range(SIZE), peer) for peer in range(4)) / 4
    own = fisher(at, FORGOTTEN)
    method = SSD(4, alpha, beta, batch=1)
    for peer in (1, 2, 3):
        at.visit(method, peer)
        assert torch.equal(at.theta, start), "a visit on the way only measures"
    at.visit(method, U)
    chosen = own > alpha * everybody
    assert 0 < int(chosen.sum()) < chosen.numel()
    assert torch.equal(at.theta[~chosen], start[~chosen])
    factor = (beta * everybody / own).clamp(max=1.0)[chosen]
    assert torch.allclose(at.theta[chosen], (factor * start[chosen]), rtol=1e-9, atol=0)
    assert "importance" not in at.work.moments, "it travels no further"


def test_salun_moves_no_parameter_outside_the_mask():
    at = At(start=trained())
    start, before = at.theta, at.loss(FORGOTTEN)
    saliency = at.gradient(FORGOTTEN).abs()
    method = SalUn(descent("momentum", rate=0.5), share=0.5)
    for peer in (U, 1, U, 2, 3, U):
        at.visit(method, peer)
    salient = saliency >= saliency.median()
    inside = torch.zeros(8, dtype=torch.bool)
    inside[saliency.topk(4).indices] = True
    assert torch.equal(at.theta[~inside], start[~inside])
    assert bool((at.theta[inside] != start[inside]).all())
    assert bool(salient[inside].all())
    assert at.loss(FORGOTTEN) > before


def test_salun_descends_to_the_mean_over_wrong_labels():
    task = TinyTask(size=M, classes=4, forgotten={U: M}, factory=lambda: linear(3, 4))
    at, twin, shard = At(task), Workspace(build_model(task.model, 0)), task.shard(U)
    output = twin.model(shard.x)
    wrong = [functional.cross_entropy(output, (shard.y + k) % 4) for k in (1, 2, 3)]
    (sum(wrong) / 3).backward()
    expected = at.theta - 0.1 * twin.gradient
    at.visit(SalUn(descent(batch=M, rate=0.1), share=1.0))
    assert torch.allclose(at.theta, expected, rtol=0, atol=1e-12)


def divergence(at: At, teacher: torch.Tensor, rows: range) -> float:
    """KL of the teacher's answers to the model's on some of u's rows."""
    old = At(start=teacher)
    x = TASK.shard(U).x[list(rows)]
    with torch.no_grad():
        now, then = at.work.model(x).log_softmax(1), old.work.model(x).log_softmax(1)
    return float((then.exp() * (then - now)).sum(1).mean())


def test_scrub_without_labels_stays_with_its_teacher_and_climbs_away_on_the_forgotten():
    teacher = trained()
    at = At(start=teacher)
    at.visit(Scrub(descent(rate=0.5), 1.0, 0.0, ascents=0, batch=1), peer=1)
    assert torch.allclose(at.theta, teacher, rtol=0, atol=1e-12), "nothing pulls it away"
    method = Scrub(descent(rate=0.5), 1.0, 1.0, ascents=3, batch=1, clip=5.0)
    at = At(start=teacher)
    for _ in range(3):
        at.visit(method)
    away = divergence(at, teacher, FORGOTTEN)
    still = At(start=teacher)
    for _ in range(3):
        still.visit(Scrub(descent(rate=0.5), 1.0, 1.0, ascents=0, batch=1))
    assert away > 2 * divergence(still, teacher, FORGOTTEN)
    assert away > divergence(at, teacher, RETAINED)


def test_scrub_adds_the_gradients_of_both_its_losses():
    """Towards teacher and labels at once: alpha times KL's gradient plus gamma times the loss's."""
    alpha, gamma, eta = 0.3, 0.7, 0.1
    at = At(start=trained())
    at.work.parameters.add_(0.2)  # the student has left the teacher
    start, x = at.theta, TASK.shard(1).x
    expected = gamma * at.gradient(range(SIZE), 1)
    teacher = At(start=at.work.anchors["start"])
    student = At(start=start)
    with torch.no_grad():
        target = teacher.work.model(x).softmax(1)
    functional.kl_div(
        student.work.model(x).log_softmax(1), target, reduction="batchmean"
    ).backward()
    expected += alpha * student.work.gradient
    at.visit(Scrub(descent(batch=SIZE, rate=eta), alpha, gamma, ascents=0, batch=1), peer=1)
    assert torch.allclose(at.theta, start - eta * expected, rtol=0, atol=1e-12)


def squared(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (output - functional.one_hot(y, 2)).square().sum(1)


def test_newton_on_a_quadratic_loss_lands_on_the_minimum_without_the_forgotten():
    task = TinyTask(size=12, forgotten={U: M}, loss=squared)
    shard = task.shard(U)
    inputs = torch.cat([shard.x, torch.ones(12, 1, dtype=torch.float64)], 1)
    best = torch.linalg.lstsq(inputs, functional.one_hot(shard.y, 2).double()).solution
    at = At(task, torch.cat([best[:3].T.reshape(-1), best[3]]))
    assert float(at.gradient(range(12)).norm()) < 1e-12, "u's own minimum, with all its records"
    assert float(at.gradient(range(M, 12)).norm()) > 1e-2
    at.visit(Newton("hessian", 0.0, batch=5))
    assert float(at.gradient(range(M, 12)).norm()) < 1e-10


def test_newton_by_the_fisher_information_is_its_formula():
    at = At(start=trained())
    curvature = fisher(at, RETAINED) + 0.3
    expected = at.theta + (M / (SIZE - M)) * at.gradient(FORGOTTEN) / curvature
    at.visit(Newton("fisher", 0.3, batch=1))
    assert torch.allclose(at.theta, expected, rtol=1e-9, atol=1e-12)
    before = at.theta
    at.visit(Newton("fisher", 0.3, batch=1), peer=2)
    assert torch.equal(at.theta, before), "nothing happens elsewhere"


def test_a_large_model_has_no_whole_hessian():
    wide = TinyTask(factory=lambda: nn.Sequential(
        nn.Linear(3, 2000, dtype=torch.float64), nn.Linear(2000, 2).double()
    ))  # fmt: skip
    with pytest.raises(InvalidInput, match=r"newton\.curvature = fisher"):
        At(wide).visit(Newton("hessian", 0.1))


@pytest.mark.parametrize(("route", "forgotten"), [((1, 2, U), SIZE), ((U, 1, U, 2), M)])
def test_residual_subtraction_takes_out_the_share_of_what_u_put_in(route, forgotten):
    """All of u's records, visited last: what is left is the model that came to u."""
    task = TinyTask(forgotten={U: forgotten})
    at, came, put_in = At(task), [], torch.zeros(8, dtype=torch.float64)
    for peer in route:
        came.append(at.theta)
        at.visit(Logging(descent()), peer)
        if peer == U:
            put_in += at.theta - came[-1]
    left = at.theta
    quiet = Descent(StepRule("sgd", learning_rate=0.0), LocalWork(batch=4))
    at.visit(Residual(quiet), phase_hop=1)
    assert torch.allclose(at.theta, left - forgotten / SIZE * put_in, rtol=0, atol=1e-14)
    if forgotten == SIZE:
        assert torch.allclose(at.theta, came[-1], rtol=0, atol=1e-14)
    assert "log" not in at.locals[U].moments


def test_residual_training_is_the_common_one_but_for_the_log():
    logged = small_run(method="residual", compare=["finetune"])
    ours, common = (logged.walks[name].outcome.transcript for name in ("residual", "finetune"))
    for one, other in zip(ours.hops[:6], common.hops[:6], strict=True):
        assert one.receiver == other.receiver
        assert [e for e in one.events if e.kind != "edited"] == list(other.events)


def test_no_claim_survives_a_change_that_no_accountant_bounds():
    """Even one away from u, after a seal: the teacher and the mask carry what was forgotten."""
    phase = Phase("unlearn", Scrub(descent(), 1.0, 1.0, 0, 1), walks.Fixed((1, 2)), 2)
    (outcome,) = InProcess().run([plan(phase, task=TASK)])
    kinds = {event.kind for hop in outcome.transcript.hops for event in hop.events}
    assert kinds == {"start", "edited"}
    with pytest.raises(Refused, match="no proof bounds what 'distilled-steps' changes") as refusal:
        check_bounded(outcome.transcript)
    assert refusal.value.code == "unknown-event"
