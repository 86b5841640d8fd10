"""Real peers: a daemon that takes the token, does its visit and hands it on; no server anywhere.

In: a bundle (keys, network file), the organisation's records and its requests, and what other
peers send.  Out: one trained model at every peer, and a certificate for each deletion.

Start with ``daemon.py``, the process, then ``lifecycle``.  ``status.py`` reads what a peer is doing
from its disk; ``provision.py`` makes a network and its keys; ``local_network.py`` runs one on one
machine, forked from ``preload.py``, which ``supervisor.py`` keeps up and ``demo.py`` shows with
five peers, of which one lies (``demo_liar.py``); ``telemetry.py`` is the log and the counters;
``process_memory.py`` sets up the allocator.  Each room knows the rooms after it in this list, none
before it:

``web``         the endpoint for a peer's own organisation
``lifecycle``   one peer through training, deletions and leaving
``forgetting``  how a deletion request is planned, erased and certified
``handover``    one walk at one peer: receive, visit, send, recover
``decisions``   votes, ballots and what was decided
``records``     a peer's own records and the files they come from
``storage``     state and tokens on disk
``transport``   messages and tokens between peers
``identity``    keys, certificates and the network file
``protocol``    the rules and formats as pure functions
"""
