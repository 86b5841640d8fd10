"""What every other room stands on: tokens, programs, events, transcripts, plans, seeds.

This package imports nothing on its own, so that rooms without torch (``unwalk.methods``,
``unwalk.privacy``, ``unwalk.walks``) can use its torch-free modules.  Torch lives in ``token``,
``data``, ``workspace``, ``rounding``, ``noise`` and ``outside`` only.
"""

__version__ = "0.1.0.dev0"
