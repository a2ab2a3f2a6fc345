"""Models on a node's disk: the hub cache, what a revision consists of, copies between nodes.

Used on the laptop and on the node, so it imports the standard library only. `hub_cache` has the
layout, `manifest` what a revision is, `filling` brings files from a source, which `download` (the
hub) and `copy_receiving` (another node) are, `verify` reads them and `usage` removes them. What
containers and other users can write is opened beneath a folder only.
"""
