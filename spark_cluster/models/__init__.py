"""The shape of a model: what its memory and its speed follow from, and where it is read from.

`lookup.find` looks in folders, in what is kept and on the hub (`hub.py`); `checkpoint.py` reads a
checkpoint's documents and tensors, `config.py` and `layers.py` its config.json, into a `Geometry`
(`shape.py`); `weights.py` counts bytes, `memory_share.py` what a node can give. No weights are
loaded. A new family or key of a config is a line in `data/`, or in `layers.py` if it has a rule.
"""
