"""What all peers of one machine share: loaded once, in the process that they are forked from.

Memory that was written before a fork is shared until somebody writes to it again.  The collector
of garbage writes to everything that it looks at, so all that is here is put out of its sight.
"""

from __future__ import annotations

import gc

import torch

import unwalk.peers.daemon  # noqa: F401

torch.set_num_threads(1)
with torch.no_grad():  # loads what torch loads at the first use; a backward pass may not be forked
    torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU())(torch.zeros(1, 1, 8, 8))
gc.collect()
gc.freeze()
