"""Programs that take the place of a Spark's own in a node: standard library only.

They are copied into the nodes as the package `standins`, so they import each other relatively.
"""
