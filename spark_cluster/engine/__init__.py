"""What is served, and all that is done with it: engines, deployments, copies, memory, the link.

`resolve.py` makes a frozen `Deployment` (`deployment.py`) of a recipe, the inventory and nodes;
`fetch`, `admission`, `start`, `ready`, `verify` and `state` take it and change nothing in it. All
of it runs on the laptop and reaches nodes by a `Play` or a `Session` only. An engine is a module
with an `Engine` (`engine.py`; see `vllm.py`) and a line in `config/engines.py`; a check of answers
stands with its like in `answer_checks.py`, `tool_checks.py` or `readiness_checks.py`.
"""
