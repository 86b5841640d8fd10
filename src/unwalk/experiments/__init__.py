"""The paper's experiments, one short file each; ``unwalk reproduce`` runs them.

A file lists *cells*: what is run, with which settings, and what the paper reports for it.
:mod:`~unwalk.experiments.study` carries cells out, in parts that can be stopped and resumed.
"""
