"""Checks of one Spark, and of several compared, without changing anything.

`observations.py` asks each node one question and keeps its answers; a check (`check.py`) is a pure
function from them to one verdict, in the module of its area; `probes.py` makes traffic, when asked
to. Nothing here changes a node, and a missing answer is `unknown`, never `ok`. Add a check as a
function in its area, with an entry in `issues/catalogue` that has cause and fix; `examine.py` finds
the checks of each area's module.
"""
