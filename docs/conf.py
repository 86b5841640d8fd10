"""How Sphinx makes the documentation site: ``make docs``."""

from __future__ import annotations

from unwalk.core import __version__

project = "unwalk"
author = "the unwalk authors"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "unwalk"
html_copy_source = False
html_show_copyright = False
nitpicky = False
