"""Settings: what a user can choose, each with its default, meaning and bounds; no torch.

In come keys and texts (presets, TOML files, ``--set``); out comes a frozen ``Config``, its TOML
text, and the digest that names a run.

======== ==================================================================================
fields   one setting: ``setting()`` makes the field, ``Setting`` reads and checks its value
sections the sections that every run has (``train``, ``unlearn``, ...)
config   ``Config``, the table of all settings, TOML
presets  named sets of values
======== ==================================================================================

A method's own section is defined in the method's file.  Start reading at ``config.Config``.
"""
