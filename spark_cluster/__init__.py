"""spark-cluster: one or two NVIDIA DGX Sparks, from any state to a verified vLLM endpoint.

This module travels to the nodes with the agent, so it imports nothing.
"""

__version__ = "0.1.0"
