"""Work on a node: files, processes, units, the journal, the state of engines.

Standard library only, Python 3.10: all of it runs on nodes, much of it on the laptop too. `Host` is
what resources act through; `durable` writes files of our own, `safe_paths` and `beneath` open those
of others, `replies` reads foreign replies, and each path of our own stands in `paths`. A program
that a unit starts is a function of a module here (`own_program`), listed in `runner/wire.py`.
"""
