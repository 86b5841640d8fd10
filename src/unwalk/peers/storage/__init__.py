"""What a peer has on disk: its state and its tokens, durable.

In: the state of a walk, log entries and the bytes of tokens.  Out: the same after a crash; a disk
that is full, or that lost something, is noticed and said.

Start with ``store.py``: one SQLite database, and token files named by their digest.
``token_files.py`` is the format of a token, ``database.py`` how SQLite is opened and compacted,
``integrity_mark.py`` finds at the start what a disk has lost, ``written_by.py`` refuses a store of
another protocol, ``disk_space.py`` waits for room, ``error_file.py`` keeps the error stream of a
peer in the background short.
"""
