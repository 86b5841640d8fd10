"""Who the peers are: keys, certificates, signatures and the network file.

In: files of a peer's bundle, certificates and signatures that others send.  Out: the peer that
somebody is, or a refusal.

Start with ``network_file.py``: the signed file that names the peers, the graph, the method and all
limits.  ``credentials.py`` makes keys, requests and certificates; ``trust.py`` judges those of
others and holds this peer's own (``Bundle``).  Making a network is ``unwalk.peers.provision``.
"""
