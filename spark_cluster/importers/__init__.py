"""A recipe that comes from somewhere else: command lines, recipes of other tools, registries.

An importer (`importer.py`; a format a module; which one reads a file: `files.py`) makes a `Source`,
`files.write` a recipe of that, and `update.py` does so for all files of a registry. A format
is added as a module here and a line in `files.py`; nothing of what is read is run.
"""
