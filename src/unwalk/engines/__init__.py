"""Engines: they carry plans out.  A ``Plan`` enters, an ``Outcome`` leaves, and a ``Sink`` watches.

Start reading at ``inprocess``, the reference: one walk after the other, repeatable bit for bit.
``walk`` is what happens before and after each visit, and ``execute`` defines the meaning of every
operation of a visit's program.  ``linear``, ``per_example`` and ``sums`` are the computations that
proofs and clipping need: a linear head's gradient, per-example gradients, and exact sums.

``fleet`` carries many walks in one batch (``fleet_steps``, ``fleet_gradients``), and ``choose``
decides which engine carries which plans.  ``cuda`` makes both fast on a CUDA device, behind one
interface.  Every engine passes ``tests/engines/test_contract.py``.
"""
