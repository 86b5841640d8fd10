r"""Is a seal worth it?  Noise that costs as much loss as beginning again is no bargain.

Gaussian noise of std s on the parameters of softmax regression raises the loss, to second order,
by :math:`\tfrac12 s^2 \operatorname{tr} H`, and
:math:`\operatorname{tr} H = \mathbb E\,(1 - \sum_k q_k^2)\|x\|^2 \le (1 - 1/K)\|x\|^2`.  Beginning
again from zero costs at most :math:`\ln K`.  Both are known before the walk and depend on no
record, so that the choice of a method by them gives nothing away.
"""

from __future__ import annotations

import math

from unwalk.core.validation import check_count, check_number


def noise_loss(std: float, classes: int, norm: float = 1.0) -> float:
    r"""The most that the noise can raise the loss, to second order.

    >>> round(noise_loss(0.5, 10), 4)
    0.1125
    """
    check_number("std", std, low=0.0)
    check_count("classes", classes, low=2)
    check_number("norm", norm, above=0.0)
    return 0.5 * std * std * (1.0 - 1.0 / classes) * norm * norm


def restart_loss(classes: int) -> float:
    """The most that beginning again from zero can cost.

    >>> round(restart_loss(10), 4)
    2.3026
    """
    return math.log(check_count("classes", classes, low=2))
