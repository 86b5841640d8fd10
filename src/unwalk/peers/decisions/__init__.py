"""How the peers decide: votes, ballots, and what was decided.

In: a matter (which chapter is next, how a walk ended) and the votes of others.  Out: one decided
value with the signatures that prove it, the same at every honest peer.

The rules are pure functions in ``unwalk.peers.protocol.consensus``.  Start with ``ballot.py``: one
decision at one peer, with disk, wire and clock.  ``votes.py`` signs and checks votes,
``walk_end.py`` says what is decided of an end, ``decided.py`` checks decisions that others show,
``history.py`` keeps them with the visits that counted.
"""
