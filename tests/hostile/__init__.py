"""Attackers that the product must withstand, for the tests of every feature.

`recipe.py` writes hostile recipes, `container.py` leaves behind what a container could write,
`unit.py` is a program of an engine that looks for a way to the node, `user.py` runs programs as a
user of the node without rights, `agent.py` plays the agent's side of a session.
"""
