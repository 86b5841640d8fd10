"""Experiments: the paper's figure and tables, and two of our own, for ``unwalk reproduce``.

In come the name of an experiment, a task and a preset.  Out come one document per experiment and
task (JSON and CSV), the figure as SVG, and ``reproduction.html`` with every number beside the
paper's.

Start reading at :mod:`~unwalk.experiments.paper`: the figure and the tables as lists of *cells*. A
cell is one method with one setting and one seed, and the paper's number for it.  ``tuning`` and
``precision`` are our own experiments.  :mod:`~unwalk.experiments.study` carries cells out, in parts
that can be stopped and resumed; :mod:`~unwalk.experiments.reproduce` makes the documents and page.
"""
