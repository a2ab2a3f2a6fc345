"""Ways to break the lab's nodes, each of which `doctor` must find."""
