"""One walk at one peer: the token taken, visited and handed on.

In: tokens and small messages of other peers.  Out: the token with this peer's visit, for the next
peer; in the end one last token that all have voted for.

Start with ``service.py``, which runs all parts, and ``walk.py``, the state that they share.  What
others send comes in through ``doorway.py``.  A token arrives in ``receiving.py`` (if
``receiving_places.py`` has a place for it; its bytes in ``byte_stream.py``, checked by
``checks.py`` and ``log_rules.py``), is trained in ``visit.py`` (or ``early_visit.py``), leaves in
``sending.py``; ``recovery.py`` goes on from a copy if it is lost.  ``control_messages.py`` asks
and answers, ``end_vote.py`` and ``last_token.py`` end the walk; ``moves.py`` writes moves as JSON.
Which state may follow which is in ``unwalk.peers.protocol.handover``.
"""
