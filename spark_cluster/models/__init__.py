"""The shape of a model: what its memory and its speed follow from, and where it is read from."""
