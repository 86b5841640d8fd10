"""Deletion requests: how they are written down, planned, erased and certified.

In: a form with ids of records.  Out: a chapter that forgets them, signed receipts of erasure, and
a certificate that a stranger can check.

Start with ``requests.py``: every request with its stage, durable (``request_form.py`` is what may
be asked).  ``plans.py`` chooses how to forget, ``erasure.py`` erases models and signs that,
``peer_certificate.py`` makes and checks the certificate, ``certificate_archive.py`` packs it.  Who
does these steps, and when, is ``unwalk.peers.lifecycle.request_steps``.
"""
