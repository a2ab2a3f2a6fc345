"""Models on a node's disk: the hub cache, what a revision consists of, copies between nodes.

Used on the laptop and on the node, so it imports the standard library only. `hub_cache` has the
layout, `manifest` what a revision is, `download` brings files from a source (the hub, or by
`copy_receiving` another node), `verify` reads them and `usage` removes them. What containers and
other users can write is opened beneath a folder only.
"""
