"""Small programs that measure or ask from a node, for the time of one question."""
