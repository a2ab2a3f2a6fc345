"""What is served, and all that is done with it: engines, Ray, deployments, copies, memory, the link.

`resolve.py` makes a frozen `Deployment` (`deployment.py`) of a recipe, the inventory and the nodes;
`fetch`, `admission`, `start`, `ready`, `verify` and `state` take it and change nothing in it. It runs
on the laptop and reaches nodes by a `Play` or a `Session` only; what it puts there are resources and
roles. An engine is one module with an `Engine` (`engine.py`; see `vllm.py`) and a line in
`config/engines.py`; a check of answers stands with its like in `answer_checks.py`, `tool_checks.py`
or `readiness_checks.py`; names of programs are in `names.py` only.
"""
