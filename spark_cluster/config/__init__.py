"""Reading what a user writes: YAML with the place of every value, errors in the user's words."""
