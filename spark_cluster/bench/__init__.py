"""Benchmarks of what is served: suites, runs, records, comparison, reports.

A suite (`suite.py`) becomes servers and cells (`expansion.py`). `sequence.py` brings servers up,
`steps.py` has the head measure their cells with a load generator (`generators.py`,
`open_loop.py`), `on_node.py` exchanges files with the nodes. What came of it is `record.py`;
`compare.py`, `references.py`, `repeat.py` and `report/` read records, which may be somebody else's:
nothing in them is believed unchecked. `fabric_run.py` is `bench fabric`.

A run that was cut goes on where it was: what a cell gave is on the node until it is in the record.
To add a load generator, write a `Generator` and list it in `GENERATORS`; to add a table, declare it
in `report/tables.toml` and give its rows in `report/tables.py`.
"""
