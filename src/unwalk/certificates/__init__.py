"""Certificates: what is claimed about a run, made from its transcript, signed and checkable.

In come a transcript and the digest of the released model; out comes a document that anyone who has
the transcript can compute again.  A method's proof and threat model come from its record
(:mod:`unwalk.methods`).

========== ================================================================================
conditions conditions that every proof needs; each one that fails is a refusal
document   the certificate: every claim (nominal numbers, the method's proof, refusals), threat
           model, public facts, what was done, counted from events
form       the closed form of a certificate: its keys, and what may stand under each
signing    Ed25519 over canonical JSON (needs the cryptography package)
verify     recomputes everything, compares, and names each difference
words      the same content in sentences for readers without a background in privacy
========== ================================================================================

Start reading at ``document.certificate_of``.  No torch is needed to check a certificate.
"""

from unwalk.certificates.document import certificate_of, claims_of, read_certificate
from unwalk.certificates.verify import Verdict, verify

__all__ = ["Verdict", "certificate_of", "claims_of", "read_certificate", "verify"]
