"""The formats in which a launch serves a model: by its checkpoint, and by its flags."""

from __future__ import annotations

from spark_cluster.config.launch import Launch
from spark_cluster.config.recipe_schema import Quantization
from spark_cluster.errors import UsageError
from spark_cluster.models.naming import NOT_SAID
from spark_cluster.models.shape import Geometry
from spark_cluster.models.weights import BYTES, must_be_known


def quantization_of(launch: Launch, geometry: Geometry) -> Quantization:
    """Return how the weights of a launch lie in memory.

    Raises:
        UsageError: it is not known here.
    """
    if launch.quantization and geometry.stored is None:  # tensors know better than names
        return launch.quantization
    found = checkpoint_quantization(geometry)
    online = launch.quantization == "fp8-online" or launch.args.get("quantization") == "fp8"
    return "fp8-online" if found == "bf16" and online else found


def checkpoint_quantization(geometry: Geometry) -> Quantization:
    """Return the quantization by the model's own config; BF16 when it names none.

    Raises:
        UsageError: it says something that is not known here.
    """
    stored = geometry.stored
    name = geometry.quantization or "bf16" if stored is None else stored.quantization
    try:
        return must_be_known(name)
    except UsageError:
        if stored is not None:
            raise
        said = f"the config of {geometry.name} says its quantization is '{geometry.quantization}'"
        if geometry.quantization == NOT_SAID:
            said = f"the name {geometry.name} says that its weights are quantized, but not how"
        raise UsageError(
            f"{said}: their size and speed are not known here",
            hint="its tensors would tell: without --offline they are read from the hub; or give "
            f"the nearest with --quantization: {', '.join(BYTES)}",
        ) from None


def checkpoint_kv_dtype(name: str, quantization: Quantization, geometry: Geometry) -> str:
    """Return what `--kv-cache-dtype auto` becomes.

    The checkpoint decides where its config is at hand. NVIDIA's NVFP4 builds ask for FP8 (seen in
    the log of Gemma-4-31B NVFP4 on a single DGX Spark), also when only the model that they are
    built from is known.
    """
    nvidia = quantization == "nvfp4" and name.startswith("nvidia/")
    if geometry.kv_dtype is None and geometry.quantization is None and nvidia:
        return "fp8"
    return geometry.kv_dtype or "auto"
