"""A run as one self-contained HTML file: one module per section, and the charts that sections draw."""

import os
from pathlib import Path

try:
    Path.home()
except RuntimeError:  # Altair cannot be imported for a user whom the system does not know
    os.environ["HOME"] = os.devnull
