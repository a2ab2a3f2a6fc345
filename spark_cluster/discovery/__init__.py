"""Finding Sparks: what is announced on the local network, and who is at the end of a cable."""
