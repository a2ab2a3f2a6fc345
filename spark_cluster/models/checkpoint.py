"""What is known of a model without its weights: its documents, and the headers of its files.

One reader for the hub, a node that reaches it, and a folder of this machine.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from spark_cluster.errors import InvalidFile
from spark_cluster.models.config import from_config
from spark_cluster.models.hub.documents import DocumentSource, HubError, Listing
from spark_cluster.models.quantization import bits, quantization, with_quantization
from spark_cluster.models.safetensors_header import (
    INDEX,
    LENGTH_BYTES,
    MOST_FILES,
    Tensor,
    folded,
    header_length,
    indexed,
    must_not_be_gguf,
    tensors,
    weight_files,
)
from spark_cluster.models.shape import (
    MATRICES,
    PARTS,
    REPLICATED,
    Geometry,
    Part,
    StoredPart,
    StoredWeights,
)
from spark_cluster.models.tables import has_trait, json_object
from spark_cluster.node.store.hub_problems import HubProblem

# The bytes of a model's parts, counted from the tensors of its checkpoint.

FORMATS: Mapping[str, str] = {
    **dict.fromkeys(("BF16", "F16", "F32", "F64"), "bf16"),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), "fp8"),
    "I8": "int8",
}
"""Types of tensors whose elements are weights; packed ones are told apart by their scales."""

KNOWN = ("bf16", "fp8", "nvfp4", "mxfp4", "awq-int4", "gptq-int4")

_SHARED_WITH_MODEL = re.compile(r"(embed_tokens|shared_head\.head|lm_head)\.")
"""Copies that MTP layers have in the checkpoint; vLLM takes the model's."""


@dataclass
class _Sum:
    """What is counted of one part."""

    parameters: int = 0
    bytes: float = 0.0
    whole: float = 0.0
    formats: dict[str, int] = field(default_factory=dict)

    def add(self, parameters: int, size: float, label: str, *, whole: bool) -> None:
        self.parameters += parameters
        self.bytes += size
        self.whole += size if whole else 0.0
        if parameters:
            self.formats[label] = self.formats.get(label, 0) + parameters

    @property
    def format(self) -> str:
        return max(self.formats, key=lambda label: self.formats[label], default="bf16")


def count(
    tensors: Iterable[Tensor], geometry: Geometry, config: Mapping[str, Any]
) -> StoredWeights:
    """Count what a checkpoint's weights take in memory.

    Args:
        tensors: of all files.
        config: with the quantization that the checkpoint declares.
    """
    every = list(tensors)
    packed_bits = bits(config)
    in_words = _of_words(config, packed_bits)
    in_bytes = _of_bytes(every, config)
    sums: dict[Part, _Sum] = {name: _Sum() for name in PARTS}
    for tensor in every:
        part = part_of(tensor.name, geometry.layers)
        if part == "drafter" and _SHARED_WITH_MODEL.search(tensor.name):
            continue
        found = numbers(tensor, packed_bits)
        label = {"int": in_words, "float": in_bytes}.get(
            found.packed, FORMATS.get(tensor.dtype, "bf16")
        )
        whole = part in REPLICATED or bool(WHOLE.search(f".{tensor.name}."))
        whole = whole or (part == "other" and has_trait(geometry.model_type, "tower_held_whole"))
        as_stored = part == "router"  # routers are computed in 32 bits where they are stored so
        size = float(tensor.size * tensor.count) if as_stored else found.loaded
        sums[part].add(found.parameters, size, label, whole=whole)
    tied = geometry.tied or not sums["output"].bytes
    if geometry.tied and sums["output"].bytes:  # some checkpoints store the tied layer twice
        sums["output"] = _Sum()
    experts = geometry.experts
    return StoredWeights(
        tuple(_part(name, found) for name, found in sums.items() if found.bytes),
        quantization=_whole_model(sums),
        experts=experts.count if experts else 0,
        top_k=experts.top_k if experts else 0,
        tied=tied,
        counted=True,
    )


def _part(name: Part, found: _Sum) -> StoredPart:
    return StoredPart(name, found.parameters, found.bytes, found.whole, found.format)


def _of_words(config: Mapping[str, Any], packed_bits: int) -> str:
    """The format of weights that are packed in 32-bit words."""
    declared = quantization(config) or ""
    if packed_bits >= 8:
        return "int8"
    return "awq-int4" if declared.startswith("awq") else "gptq-int4"


def _of_bytes(tensors: Iterable[Tensor], config: Mapping[str, Any]) -> str:
    """The format of weights that are packed in pairs: by their scales, else as declared."""
    for tensor in tensors:
        if tensor.name.endswith(("weight_scale", "_scales", "weight_scale_inv")):
            if tensor.dtype == "F8_E4M3" and len(tensor.shape) > 1:
                return "nvfp4"
            if tensor.dtype in ("U8", "F8_E8M0"):
                return "mxfp4"
    declared = quantization(config)
    return declared if declared in ("nvfp4", "mxfp4", "awq-int4") else "gptq-int4"


def _whole_model(sums: Mapping[Part, _Sum]) -> str:
    """The format that says most about the whole: the one that most weights of matrices have; for
    one that recipes have no word for, the nearest by size.
    """
    together: dict[str, int] = {}
    for name in MATRICES:
        for label, number in sums[name].formats.items():
            together[label] = together.get(label, 0) + number
    most = max(together, key=lambda label: together[label], default="bf16")
    return most if most in KNOWN else "fp8"


_PARTS_BY_NAME: Mapping[str, Mapping[Part, str]] = tomllib.loads(
    Path(__file__).with_name("tensor_names.toml").read_text(encoding="utf-8")
)
_LONGEST_NUMBER = 6

WHOLE = re.compile(
    r"\.(q_a_proj|kv_a_proj_with_mqa|kv_a_proj|fused_qkv_a_proj|wq_a|wkv_a|indexer"
    r"|fc[12]_latent_proj|shared_expert_gate)\."
)
"""Matrices that every rank holds in full besides routers (vLLM: `ReplicatedLinear`)."""

_WITH_WEIGHTS = re.compile(
    r"(scales?|scale_inv|scale_2|zeros|zero_point|zero_points|g_idx|weight_shape|absmax|quant_map"
    r"|quant_state\..*|bitsandbytes__\w+|perm|suh|svh)$"
)
"""Ends of names of what goes with quantized weights and is none."""


def part_of(name: str, layers: int) -> Part:
    """The part of a model that a tensor of this name belongs to.

    Args:
        layers: of the model; those from there on are MTP layers (DeepSeek, GLM).
    """
    words = name.lower().split(".")
    numbers = (i for i, w in enumerate(words) if w.isdecimal() and len(w) <= _LONGEST_NUMBER)
    place = next(numbers, None)
    if found := _found("anywhere", f".{name.lower()}."):
        return found
    if place is None:
        *names, last = words
        text = f".{'.'.join(names or words)}. {last}"
        return _found("outside", text) or _found("positions", text) or "mlp"
    if int(words[place]) >= layers:
        return "drafter"
    return _found("in_a_layer", f".{'.'.join(words[place + 1 :])}.") or "mlp"


def _found(place: str, text: str) -> Part | None:
    """Return the first part of a place whose pattern is in a text."""
    parts = _PARTS_BY_NAME[place].items()
    return next((part for part, pattern in parts if re.search(pattern, text)), None)


@dataclass(frozen=True)
class Numbers:
    """The numbers that a tensor holds.

    Attributes:
        parameters: weights, unpacked; 0 for scales and the like.
        packed: `int` or `float` for several weights in a word, else empty.
        loaded: bytes in memory, all of its kind: what is stored with 32 bits is loaded with 16.
    """

    parameters: int
    packed: Literal["", "int", "float"]
    loaded: float


def numbers(tensor: Tensor, bits: int) -> Numbers:
    """The weights in a tensor.

    Args:
        bits: of a weight that is packed in whole numbers.
    """
    size = float(tensor.size * tensor.count)
    if _WITH_WEIGHTS.search(tensor.name):
        return Numbers(0, "", size)
    each = tensor.elements * tensor.count
    if tensor.dtype in ("I32", "U32", "I64"):
        if len(tensor.shape) <= 1:
            return Numbers(0, "", size)
        width = 64 if tensor.dtype == "I64" else 32
        return Numbers(each * width // bits, "int", size)
    if tensor.dtype == "U8":
        return Numbers(each * 2, "float", size)
    if tensor.dtype in ("F32", "F64") and len(tensor.shape) > 1:
        return Numbers(each, "", 2.0 * each)
    return Numbers(each, "", size)


QUANTIZATION_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
"""Where a build may declare its quantization besides config.json."""

LARGEST_DOCUMENT = 4 << 20
LARGEST_INDEX = 64 << 20
FIRST_READ = 128 << 10
"""Bytes of a file of weights that are asked for at first: most headers are shorter."""
LARGEST_HEADERS = 64 << 20
"""Bytes of a header from the network; the format allows 100 MB, published ones have up to 20."""

Where = Callable[[str], str]
"""Names a file of a model in messages."""


@dataclass(frozen=True)
class Checkpoint:
    """A model without its weights.

    Attributes:
        config: its config.json, with the quantization from wherever that is declared.
        generation: its generation_config.json; empty without one.
        tensors: of all its files, experts together; None when they are not known.
        commit: on the hub; empty for a folder or an entry of the table.
        problem: why the tensors are not known; empty when they are, or when nothing was tried.
    """

    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    tensors: tuple[Tensor, ...] | None
    commit: str = ""
    problem: str = ""

    def geometry(self, name: str) -> Geometry:
        """Its shape, with the weights as counted from the tensors where these are known.

        Raises:
            InvalidFile: the config lacks what is needed, or says what is not understood.
        """
        shape = from_config(self.config, name)
        if not self.tensors:
            return shape
        return replace(shape, stored=count(self.tensors, shape, self.config))


def read_checkpoint(
    source: DocumentSource, repository: str, listing: Listing, where: Where | None = None
) -> Checkpoint:
    """Read what there is to know of a model without its weights; of weights that cannot be read,
    why: a pointer of git-lfs, say.

    Args:
        where: names a file in messages; by default as one of the repository.

    Raises:
        HubError: it has no config.json, or the source does not give it.
        InvalidFile: its config.json is none, or its weights are in GGUF only.
    """
    where = where or (lambda name: f"{name} of {repository}")

    def document(name: str) -> Mapping[str, Any]:
        text = source.read(repository, listing.commit, name, most=LARGEST_DOCUMENT)
        return json_object(_whole(text, where(name)), where(name))

    if "config.json" not in listing.names:
        without_shape = HubProblem(
            "file",
            f"{repository} has no config.json on the hub, so its shape is not known",
            "models in other formats (GGUF, LoRA adapters) cannot be planned: name the model in "
            "the safetensors format",
        )
        raise HubError(without_shape)
    must_not_be_gguf(listing.names, repository)
    config, beside = document("config.json"), "generation_config.json"
    for name in QUANTIZATION_FILES:
        if name in listing.names:
            config = with_quantization(config, name, document(name))
    generation = document(beside) if beside in listing.names else {}
    found, problem = None, ""
    try:
        found = stored_tensors(source, repository, listing, where)
    except (HubError, InvalidFile) as error:
        problem = error.message
    return Checkpoint(config, generation, found, listing.commit, problem)


def _whole(answer: tuple[bytes, bool], where: str) -> bytes:
    """Return what was read of a file, all of it.

    Raises:
        InvalidFile: it is longer.
    """
    text, is_all = answer
    if not is_all:
        raise InvalidFile(f"is longer than {len(text) >> 20} MiB", where=where)
    return text


def stored_tensors(
    source: DocumentSource, repository: str, listing: Listing, where: Where
) -> tuple[Tensor, ...] | None:
    """Return the tensors of all files, experts together; None when there are no safetensors.

    Raises:
        HubError: the source does not give a file.
        InvalidFile: the index or a header cannot be read.
    """
    if INDEX in listing.names:
        text = source.read(repository, listing.commit, INDEX, most=LARGEST_INDEX)
        files = indexed(_whole(text, where(INDEX)), where(INDEX))
    else:
        files = weight_files(listing.names)
    if not files or len(files) > MOST_FILES:
        return None
    found: list[Tensor] = []
    starts = source.beginnings(repository, listing.commit, files, FIRST_READ)
    for name, start in zip(files, starts, strict=True):
        begin, missing, more = len(start), _missing(start, where(name)), b""
        if missing:
            more = source.read(repository, listing.commit, name, begin=begin, most=missing)[0]
        end = LENGTH_BYTES + header_length(start, where(name))
        found += folded(tensors((start + more)[LENGTH_BYTES:end], where(name)))
    return tuple(folded(found))


def _missing(start: bytes, where: str) -> int:
    """Return how many bytes of a header are not in the start of its file."""
    length = header_length(start, where)
    if length > LARGEST_HEADERS:
        raise InvalidFile(f"its header is {length} bytes long", where=where)
    return max(0, LENGTH_BYTES + length - len(start))
