"""Models, images and caches between the hub, the nodes and the laptop."""
