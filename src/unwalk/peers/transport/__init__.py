"""How messages and tokens travel between peers.

In: bytes and the number of the peer that they are for.  Out: that peer's answer, or
``Unreachable``; and calls of others, each with the peer that its certificate names.

Start with ``Transport`` in ``wire.py``: ``hand`` moves a token, ``tell`` a small message.  The same
module has it over gRPC with mutual TLS, and in memory for tests.  ``rate_limit.py`` counts calls
per peer.  What messages mean is not known here.
"""
