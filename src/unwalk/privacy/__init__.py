"""What is proved about a run, in numbers: accountants, calibration, the paper's formulas.

numpy and scipy only.  One topic a file; ``docs/math.md`` lists every bound with its statement,
assumptions, source and tests.

=================== =========================================================================
gaussian            the Gaussian mechanism, exactly, both ways
renyi               Renyi curves, composition, the tight conversion
visits              a random number of visits, public coin; capped visits
seal                the ball seal, its profile, and visits after it
shift, iteration    the constrained minimum behind amplification by iteration; PNSGD
ledger, release     stability of convex training; noise once at the end
noisy_start         noise from the first hop on
network, gossip     views of a walk with noise at every hop, on any graph; gossip averaging
group               m records instead of one
subsampled          the sampled Gaussian mechanism of DP-SGD
nominal, utility,   the paper's formulas with explicit constants, the corrected form beside
capacity, published each; network DP as its papers state it
worth               whether a seal is worth its noise beside a restart
calibrate           one door: accountant and target in, sigma, epsilon or steps out
accountants,        accountants over recorded events: they check what they need and refuse the
stability, claims   rest by name
exact               proofs of exactness, read from events
formulas            formulas' numbers in a header, computed anew and compared with the events
=================== =========================================================================
"""

from unwalk.privacy.accountants import ball_seal_claim, public_coin_claim, sealed_claim
from unwalk.privacy.calibrate import ACCOUNTANTS, calibrate, list_accountants
from unwalk.privacy.claims import Claim
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
