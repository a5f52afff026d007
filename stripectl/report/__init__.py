"""A run as one HTML file: run -> plain dict -> template.

`context` says everything the page shows, as data; the template lays it out and asks `figures` for the drawings.
"""

import base64
import functools
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from stripectl import BadInput, __version__, console, figures_of_units
