"""Models on a node's disk: the hub cache, what a revision consists of, copies between nodes.

Used on the laptop and on the node, so it imports the standard library only.
"""
