"""Engines carry plans out: a plan enters, an ``Outcome`` leaves, and a ``Sink`` watches.

Start with `inprocess`, the reference: one walk after the other, bit for bit repeatable.  `walk` is
what happens before and after each visit, `execute` the meaning of every operation of a visit's
program; `linear`, `per_example` and `sums` are the gradients and sums that it computes by itself.

`fleet` carries many walks in one batch (`fleet_steps`, `fleet_gradients`), and `choose` says which
engine carries which plans.  `cuda` is how both are fast on a CUDA device, behind one interface.
Every engine passes ``tests/engines/test_contract.py``.
"""
