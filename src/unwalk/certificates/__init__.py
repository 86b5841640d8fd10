"""Certificates: what is claimed of a run, made from its transcript, signed and checkable.

In come a transcript and the digest of the released model; out comes a document that anyone who has
the transcript can make again.  A method's proof and threat model come from its record
(:mod:`unwalk.methods`).

========== ================================================================================
conditions what must hold whatever a proof says; each broken one is a refusal
claims     every claim on a run: numbers of formulas, the method's proof, refusals
deeds      what was done after the request, counted from events
document   the certificate: claims, threat model, what was public, digest of the chain
signing    Ed25519 over canonical JSON (needs the cryptography package)
verify     everything recomputed and compared; what differs is named
words      the same for people who know no Renyi divergence
========== ================================================================================

Start reading at ``document.certificate_of``.  No torch is needed to check a certificate.
"""

from unwalk.certificates.claims import claims_of
from unwalk.certificates.document import certificate_of, read_certificate
from unwalk.certificates.verify import Verdict, verify

__all__ = ["Verdict", "certificate_of", "claims_of", "read_certificate", "verify"]
