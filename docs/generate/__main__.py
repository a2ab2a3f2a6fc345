"""`python -m docs.generate`: write the JSON Schemas and pictures that are checked in."""

from __future__ import annotations

from docs.generate import pictures, schemas

for path in [*schemas.write(), *pictures.write()]:
    print(path)
