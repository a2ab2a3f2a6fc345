"""Facts about a node, and the parsers of its tools' output."""
