"""Settings: what a user can choose, each with its default, meaning and bounds; no torch.

In come keys and texts (presets, TOML files, ``--set``); out comes a frozen ``Config``, its TOML
text, and the digest that names a run.

All of it is in ``config``: ``setting()`` makes one field, the sections that every run has
(``train``, ``unlearn``, ...) are made of such fields, ``Config`` holds the sections, and a preset
is a named set of values.  A method's own section is defined in the method's file.

Start reading at ``config.Config``.
"""
