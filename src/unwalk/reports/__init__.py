"""Reports: self-contained HTML pages, and tables for the terminal.

In come plain dictionaries: the content of ``result.json`` (a run, a comparison), of ``audit.json``,
or the documents that ``unwalk reproduce`` writes.  Out comes one HTML text, an SVG file, or a table
of rich.  Nothing is measured here, and no other file is read.

Start reading at :mod:`~unwalk.reports.run_page` or :mod:`~unwalk.reports.reproduction_page`: each
turns its dictionary into tables (``tables``) and pictures (``charts``) and hands
them to a template in ``templates/``, which escapes every text.  ``result`` and ``reproduction``
check and read the dictionaries; ``reproduction_figure`` and ``reproduction_trials`` are parts of
the reproduction page; ``plans`` shows the ways to forget; ``pareto`` draws forgetting against
accuracy; ``audit_page`` is the page of an audit, ``sweep_page`` of a sweep, ``capacity_page`` of a
deletion capacity; ``exports`` writes all of a result as files; ``numbers`` formats every number;
``page`` has the colours.
"""

from __future__ import annotations

from unwalk.reports.run_page import render, trade_picture
from unwalk.reports.tables import summary_table

__all__ = ["render", "summary_table", "trade_picture"]
