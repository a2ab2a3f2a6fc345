"""`python -m docs.generate`: write the JSON Schemas that are checked in."""

from __future__ import annotations

from docs.generate.schemas import write

for path in write():
    print(path)
