"""What people look at: self-contained HTML pages, and tables for the terminal.

In: plain dictionaries, either the content of ``result.json`` (a run, a comparison) or the documents
that ``unwalk reproduce`` writes.  Out: one HTML text, an SVG file, or a table of rich.  Nothing is
measured here, and nothing else is read.

Start with :mod:`~unwalk.reports.run_page` or :mod:`~unwalk.reports.reproduction_page`: each turns
its dictionary into tables (``tables``) and pictures (``charts``, ``walk_chart``) and hands them to
a template in ``templates/``, which escapes every text.  ``result`` and ``reproduction`` check and
read the dictionaries; ``numbers`` writes every number; ``page`` has the colours.
"""

from __future__ import annotations

from unwalk.reports.run_page import render
from unwalk.reports.terminal import summary_rows, summary_table

__all__ = ["render", "summary_rows", "summary_table"]
