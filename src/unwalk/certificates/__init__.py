"""Certificates: what is claimed of a run, made from its transcript, signed and checkable.

========== ================================================================================
conditions what must hold before any accountant is asked; each broken one is a refusal
exact      claims of exactness, read from events
claims     which accountant speaks for which method
formulas   numbers of the paper that nothing proves, computed anew
document   the certificate: claims, threat model, what was public, digest of the chain
signing    Ed25519 over canonical JSON (needs the cryptography package)
verify     everything recomputed and compared; what differs is named
words      the same for people who know no Renyi divergence
========== ================================================================================

No torch is needed to check a certificate.
"""

from unwalk.certificates.claims import claims_of
from unwalk.certificates.document import certificate_of, read_certificate
from unwalk.certificates.verify import Verdict, verify

__all__ = ["Verdict", "certificate_of", "claims_of", "read_certificate", "verify"]
