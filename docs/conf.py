"""The documentation: MyST Markdown rendered by Sphinx. `make docs` builds it, without network and without warnings."""

import sys
from importlib import metadata
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))

project = "stripectl"
author = "The stripectl authors"
project_copyright = author
release = version = metadata.version("stripectl")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click", "generated"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
default_role = "code"
smartquotes = False  # two dashes stay two dashes
nitpicky = False  # types of other packages have no page without intersphinx, which needs the network

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4
suppress_warnings: list[str] = []

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_math_renderer = "mathml"
html_theme = "furo"
html_title = f"stripectl {release}"
html_static_path: list[str] = []
html_theme_options = {
    "source_repository": "https://github.com/stripectl/stripectl/",
    "source_branch": "main",
    "source_directory": "docs/",
}
html_copy_source = False
html_show_sphinx = False
pygments_style, pygments_dark_style = "tango", "monokai"
