"""The planning of what fits, and how fast it will be, before anything is started."""
