"""Runs a play from the laptop: connections to nodes, agents on them, events of what they do.

A `Dialer` opens connections (`ssh.py` on fabric; host keys: `known_hosts.py`), a `Session` talks to
an agent that `wire.py` has started with our Python; `Play` is the API of playbooks, `delivery.py`
sends resources. Output leaves as an event (`events.py`) only. A new kind of connection is a
`NodeConnection`; a new event is a dataclass in `events.py`.
"""
