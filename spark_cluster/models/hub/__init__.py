"""The shape of models on the hub: config and tensors by their headers, never the weights."""
