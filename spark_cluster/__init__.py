"""spark-cluster: one or two NVIDIA DGX Sparks, from any state to a verified vLLM endpoint.

This module travels to the nodes with the agent, so it imports nothing: the names of the Python API
are imported when they are asked for.
"""

__version__ = "0.1.0"

__all__ = ["Allowances", "Cluster", "Options", "Selection", "__version__"]

_MODULES = {
    "Allowances": "spark_cluster.config.extension",
    "Cluster": "spark_cluster.cli.api",
    "Options": "spark_cluster.runner.events",
    "Selection": "spark_cluster.runner.events",
}

TYPE_CHECKING = False  # as type checkers read it, without importing typing
if TYPE_CHECKING:
    from spark_cluster.cli.api import Cluster
    from spark_cluster.config.extension import Allowances
    from spark_cluster.runner.events import Options, Selection


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "errors"]
