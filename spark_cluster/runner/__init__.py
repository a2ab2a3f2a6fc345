"""Ships resources to nodes and collects events."""
