# stands in for a patched file
