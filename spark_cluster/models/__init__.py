"""The shape of a model: what its memory and its speed follow from, and where it is read from."""

from spark_cluster.models.config import from_config
from spark_cluster.models.find import find, known_models
from spark_cluster.models.local import model_folder
from spark_cluster.models.shape import (
    Attention,
    Experts,
    Geometry,
    Latent,
    Recurrent,
)
from spark_cluster.models.stored_weights import weights_bytes

__all__ = [
    "Attention",
    "Experts",
    "Geometry",
    "Latent",
    "Recurrent",
    "find",
    "from_config",
    "known_models",
    "model_folder",
    "weights_bytes",
]
