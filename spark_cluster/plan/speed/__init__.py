"""Speed prediction: decode, prefill, speculative decoding, one Spark or several."""
