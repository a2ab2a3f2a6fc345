"""The form of a pinned requirement of Python, for the laptop and for the node."""

from __future__ import annotations

import re

PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?(==[^\s*,;]+| @ \S+)( ;.*)?")
