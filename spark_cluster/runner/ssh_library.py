"""paramiko, without what it imports for a feature that is not used here.

paramiko's reader of ssh_config imports `invoke`, where it is installed, for `Match exec` lines;
here `ssh -G` reads them (see ssh_config.py). invoke takes 40 % of the time of importing paramiko:
it brings asyncio, unittest.mock and a parser of YAML.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

__all__ = ["paramiko"]


@contextlib.contextmanager
def _without(module: str) -> Iterator[None]:
    """Let `import MODULE` raise ImportError meanwhile, unless it has been imported already."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # documented: "forces the failure"
    try:
        yield
    finally:
        del sys.modules[module]


with _without("invoke"):
    import paramiko
