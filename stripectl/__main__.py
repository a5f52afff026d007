"""`python -m stripectl` is the console command. Python puts the current folder first on its path; here nothing is
imported from it, unless stripectl itself lies there."""

import os
import sys
from pathlib import Path

if not sys.flags.safe_path and not Path(__file__).is_relative_to(os.getcwd()):
    sys.path[:] = [entry for entry in sys.path if entry not in ("", os.getcwd())]

from stripectl.cli import main

main()
