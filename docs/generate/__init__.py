"""Reference pages and JSON Schemas, generated from the code that they describe.

`mkdocs build` gets the pages through `docs/generate/site.py`; `python -m docs.generate` writes the
JSON Schemas that are checked in.
"""
