"""Models in a node's hub cache: what is there, whether it is whole, who uses it, what may go."""
