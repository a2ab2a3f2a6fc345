"""The agent: the process on a node that carries out what the laptop asks, one a connection.

Standard library only, Python >= 3.10. `bootstrap` starts it, `main` speaks the wire of `frames`,
`operations` has what can be asked, and `messages` (on the laptop only) the form of each operation
and reply. A new operation is a function in `operations`, or an action in `actions` (few runs want
it) or `model_store` (models and copies), and its form in `messages`.
"""
