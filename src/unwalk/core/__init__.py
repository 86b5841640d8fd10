"""Core: the data types that all other packages share, and the two kinds of randomness.

Nothing enters but plain values, arrays and tensors, and nothing here imports another package of
unwalk.  What leaves: the token (``token``), a visit as a list of operations (``program``), what it
did that matters for privacy (``events``), the log of a walk (``transcript``), a walk before it
starts (``plan``, ``walking``), public randomness (``seeds``), secret noise (``noise``,
``rounding``), and errors and refusals (``errors``, ``validation``, ``grades``).

Start reading at ``token.Token`` and ``program.Visit``, then ``plan.Plan``.

This ``__init__`` imports nothing, so that packages without torch (``methods``, ``privacy``,
``walks``) can use the torch-free modules.  Torch is imported in ``token``, ``data``,
``rounding``, ``noise`` and ``outside`` only.
"""

__version__ = "0.1.0.dev0"
