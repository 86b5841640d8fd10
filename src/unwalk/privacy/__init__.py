"""Privacy: what is proved about a run, in numbers; numpy and scipy only.

In come parameters of a bound, or the events of a transcript; out come epsilon, delta, a noise
scale, or a claim with its grade.  One topic per file; ``docs/math.md`` lists every bound with its
statement, assumptions, source and tests.

=================== =========================================================================
gaussian            the Gaussian mechanism, exactly, in both directions
renyi               Renyi curves, composition, the tight conversion
visits              a random number of visits with a public coin; capped visits
seal                the ball seal, its privacy profile, and visits after it
shift, iteration    amplification by iteration: the constrained minimum behind it; PNSGD
ledger, release     stability of convex training; noise once at the end
noisy_start         noise from the first hop on
dp_training         clipped and noised gradients from the first hop on, of any model
network, gossip     views of a walk with noise at every hop, on any graph; gossip averaging
group               m records instead of one
subsampled          the sampled Gaussian mechanism of DP-SGD
nominal, utility,   the paper's formulas with explicit constants, each beside its corrected
capacity, published form; the loss that noise costs; network DP as its papers state it
calibrate           one function for all accountants: target in; sigma, epsilon or steps out
accountants,        accountants over recorded events: they check their conditions and refuse
stability           what they cannot bound, by name
exact               proofs of exactness, read from events
formulas            nominal numbers of a header, recomputed and compared with the events
paper_tables        the paper's Tables 1 and 2, each number beside the corrected one
pld                 a second way to the same numbers, by the optional package dp-accounting
roots, upward       root finding and arithmetic that err on the safe side
=================== =========================================================================

Start reading at ``calibrate.calibrate`` for formulas, ``accountants.sealed_claim`` for events.
"""

from unwalk.privacy.accountants import Claim, ball_seal_claim, public_coin_claim, sealed_claim
from unwalk.privacy.calibrate import ACCOUNTANTS, calibrate, list_accountants
from unwalk.privacy.gaussian import (
    compose_mu,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_sigma,
)
from unwalk.privacy.ledger import ConvexLoss, Ledger, LinearHead, SlotSteps, ledger_distance
from unwalk.privacy.renyi import curve_epsilon, mixture_rdp, rdp_epsilon, zcdp_epsilon
from unwalk.privacy.seal import seal_epsilon, seal_log_delta, seal_sigma, seal_steps
from unwalk.privacy.stability import (
    ledger_claim,
    network_claim,
    noisy_start_claim,
    release_claim,
)
from unwalk.privacy.visits import visits_epsilon, visits_log_delta, visits_sigma

__all__ = [
    "ACCOUNTANTS",
    "Claim",
    "ConvexLoss",
    "Ledger",
    "LinearHead",
    "SlotSteps",
    "ball_seal_claim",
    "calibrate",
    "compose_mu",
    "curve_epsilon",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gaussian_sigma",
    "ledger_claim",
    "ledger_distance",
    "list_accountants",
    "mixture_rdp",
    "network_claim",
    "noisy_start_claim",
    "public_coin_claim",
    "rdp_epsilon",
    "release_claim",
    "seal_epsilon",
    "seal_log_delta",
    "seal_sigma",
    "seal_steps",
    "sealed_claim",
    "visits_epsilon",
    "visits_log_delta",
    "visits_sigma",
    "zcdp_epsilon",
]
