"""What people look at: one self-contained HTML page and one table for the terminal.

Both are made from the plain dictionary that stands in ``result.json``; nothing else is read, and
nothing is measured here.
"""

from __future__ import annotations

from unwalk.reports.html import render
from unwalk.reports.tables import summary_rows, summary_table

__all__ = ["render", "summary_rows", "summary_table"]
