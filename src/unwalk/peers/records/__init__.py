"""A peer's own records and the files that they come from.

In: files of the organisation (``data.json`` names them).  Out: rows to train on, without ids; and
the certainty that an erased record is gone, from the database and from the files.

Start with ``record_store.py``.  ``sources.py`` reads the files, ``source_changes.py`` takes over
what changed in them, ``source_erasure.py`` takes records out of them.  ``id_hashing.py`` hides ids,
``noise_register.py`` notes for which records noise was drawn, ``own_task.py`` makes the records a
task, ``trace_search.py`` looks for what is left of a record.
"""
