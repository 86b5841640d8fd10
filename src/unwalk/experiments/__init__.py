"""The paper's experiments, and what was tried beside them; ``unwalk reproduce`` runs them.

In: the name of an experiment, a task, a preset.  Out: a document for each experiment and task (JSON
and CSV), the figure as SVG, and ``reproduction.html`` with everything beside the paper's numbers.

Start with :mod:`~unwalk.experiments.paper`: the figure and the tables as lists of *cells*, each one
method with one setting and one seed, with the paper's number for it.  ``tuning`` and ``precision``
are ours.  :mod:`~unwalk.experiments.study` carries cells out, in parts that can be stopped and
resumed; :mod:`~unwalk.experiments.reproduce` makes the documents and the page of them.
"""
