"""How fast it will be: decode, prefill, speculative decoding, one Spark or several."""
