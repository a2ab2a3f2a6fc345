"""The options of vLLM by release, and their values, as `lint` knows them."""
