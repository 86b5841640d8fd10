"""Audits: the unlearning game played many times, and what an attacker shows about epsilon.

In come a configuration, the names of methods and an observer.  ``game`` runs U(D_f, A(D)) and its
certifier many times each and keeps a few of the messages that the observer saw.  ``attackers`` turn
them into scores, ``bounds`` turns errors into a lower bound on epsilon that holds with a stated
confidence, and ``verdict`` puts it beside what is claimed.  Out come ``audit.json``, a table and a
page.

Start reading at :mod:`~unwalk.audits.audit`, which does all of it.  ``worlds`` makes both
worlds, ``views`` says what an observer sees, ``canaries`` are records that the auditor plants.
"""
