"""What is true of a node, and the parsers of what its tools print."""
