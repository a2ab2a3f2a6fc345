"""What fits on which nodes, and how fast it will be, before anything is started.

From the bottom: `serving.py` (a model as it is served), `kv_rules.py`, `kv_layout.py`,
`kv_pages.py` and `kv.py` (vLLM's arithmetic, a rule for each version), `estimate.py` and `speed.py`
(formulas, with ranges), `room.py` and `fit.py` (memory), `evidence.py` (what was measured),
`plan.py`, `planner.py`, `proposal.py` (answers); `calibrate.py` and `runs.py` fit the constants to
own runs.

Pure functions: no node is asked and nothing is written here; figures of others are in `data/`, each
with its source. A rule for a version of vLLM is an entry of `data/kv_rules.toml`, a published
measurement one of `data/measurements.json`, followed by `python -m benchmarks.predictions --write`.
"""
