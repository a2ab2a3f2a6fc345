"""Work on a node: files, processes, units, the journal; standard library only."""
