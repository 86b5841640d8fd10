"""Engines: they carry plans out.  A ``Plan`` enters, an ``Outcome`` leaves, and a ``Sink`` watches.

Start reading at ``inprocess``, the reference: one walk after the other, repeatable bit for bit.
Its ``Walk`` is what happens before and after each visit.  ``execute`` defines the meaning of every
operation of a visit's program; a linear head's gradient and exact sums, on which proofs rest, are
written out there.  ``per_example`` has the per-example gradients that clipping needs.

``fleet`` carries many walks in one batch (``fleet_steps``, ``fleet_gradients``), and ``choose``
decides which engine carries which plans.  ``ray_engine`` is one walk on a Ray cluster
(``ray_cluster``, ``ray_host``, ``ray_door``, ``ray_parcel``).  ``cuda`` makes both fast on a CUDA
device, behind one interface.  Every engine passes ``tests/engines/test_contract.py``.
"""
