# stands in for a patched model
