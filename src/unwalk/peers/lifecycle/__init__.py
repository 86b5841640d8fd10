"""One peer from its training to its last deletion, chapter after chapter, until it leaves.

In: what is on disk, messages about chapters, requests of the organisation.  Out: one walk after
the other (``unwalk.peers.handover``), each request brought to its certificate.

Start with ``chapter_runner.py``: it opens chapters and brings what arrives to the right one.
``progress.py`` is what all parts know, ``next_chapter.py`` agrees with others on what comes next,
``request_steps.py`` takes requests from stage to stage, with ``certifying.py`` for what all
certificates need and ``unused_records.py`` for records that no visit used.  ``leaving.py`` ends a
peer; ``accuracy.py`` measures on records that are held out.
"""
