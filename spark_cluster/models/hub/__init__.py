"""The shape of models on the hub: config and tensors by their headers, never the weights."""

from spark_cluster.models.hub.documents import DocumentSource, HubError, Listing, is_repository
from spark_cluster.models.hub.lookup import Hub, cached, online

__all__ = [
    "DocumentSource",
    "Hub",
    "HubError",
    "Listing",
    "cached",
    "is_repository",
    "online",
]
