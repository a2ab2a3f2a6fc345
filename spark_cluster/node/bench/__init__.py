"""Programs that measure next to a server, as one archive in the folder of a run."""
