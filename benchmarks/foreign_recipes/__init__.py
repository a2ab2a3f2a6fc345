"""The share of other people's recipes that get a verdict without a network."""
