"""A recipe that comes from somewhere else: command lines, recipes of other tools, registries.

An importer (`importer.py`; a format a module; which one reads a file: `files.py`) makes a `Source`,
`files.write` a recipe of that; `fetching.py` fetches a registry, `snapshot.py` converts its files.
`kits.py` chooses among the files of a folder; `shell.py` and `calls.py` read scripts.
Nothing of what is read is run, and what has no place in a recipe is listed with a reason. A format
is added as a module here and a line in `files.py`.
"""
