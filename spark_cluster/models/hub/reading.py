"""A model's checkpoint as a source has it: documents, and the headers of its files of weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_cluster.errors import InvalidFile
from spark_cluster.models.checkpoint import QUANTIZATION_FILES, Checkpoint
from spark_cluster.models.hub.documents import DocumentSource, HubError, Listing
from spark_cluster.models.json_object import json_object
from spark_cluster.models.quantization import with_quantization
from spark_cluster.models.safetensors_header import (
    LENGTH_BYTES,
    Tensor,
    folded,
    header_length,
    tensors,
)
from spark_cluster.models.weight_files import (
    INDEX,
    MOST_FILES,
    indexed,
    must_not_be_gguf,
    weight_files,
)
from spark_cluster.node.store.hub_problems import HubProblem

LARGEST_DOCUMENT = 4 << 20
LARGEST_INDEX = 64 << 20
FIRST_READ = 128 << 10
"""Bytes of a file of weights that are asked for at first: most headers are shorter."""
LARGEST_HEADERS = 64 << 20
"""Bytes of a header from the network; the format allows 100 MB, published ones have up to 20."""


def read_checkpoint(source: DocumentSource, repository: str, listing: Listing) -> Checkpoint:
    """Read what there is to know of a model without its weights.

    Raises:
        HubError: it has no config.json, or the source does not give it.
        InvalidFile: its config.json is none, or its weights are in GGUF only.
    """
    if "config.json" not in listing.names:
        without_shape = HubProblem(
            "file",
            f"{repository} has no config.json on the hub, so its shape is not known",
            "models in other formats (GGUF, LoRA adapters) cannot be planned: name the model in "
            "the safetensors format",
        )
        raise HubError(without_shape)
    must_not_be_gguf(listing.names, repository)
    config = _document(source, repository, listing, "config.json")
    for name in QUANTIZATION_FILES:
        if name in listing.names:
            config = with_quantization(config, name, _document(source, repository, listing, name))
    generation: Mapping[str, Any] = {}
    if "generation_config.json" in listing.names:
        generation = _document(source, repository, listing, "generation_config.json")
    found, problem = None, ""
    try:
        found = _tensors(source, repository, listing)
    except (HubError, InvalidFile) as error:
        problem = error.message
    return Checkpoint(config, generation, found, listing.commit, problem)


def _document(
    source: DocumentSource, repository: str, listing: Listing, name: str
) -> Mapping[str, Any]:
    text, whole = source.read(repository, listing.commit, name, most=LARGEST_DOCUMENT)
    where = f"{name} of {repository}"
    if not whole:
        raise InvalidFile(f"is longer than {LARGEST_DOCUMENT >> 20} MiB", where=where)
    return json_object(text, where)


def _tensors(
    source: DocumentSource, repository: str, listing: Listing
) -> tuple[Tensor, ...] | None:
    """The tensors of all files; None when there are no safetensors."""
    if INDEX in listing.names:
        text, whole = source.read(repository, listing.commit, INDEX, most=LARGEST_INDEX)
        if not whole:
            raise InvalidFile(f"is longer than {LARGEST_INDEX >> 20} MiB", where=INDEX)
        files = indexed(text, f"{INDEX} of {repository}")
    else:
        files = weight_files(listing.names)
    if not files or len(files) > MOST_FILES:
        return None
    found: list[Tensor] = []
    starts = source.beginnings(repository, listing.commit, files, FIRST_READ)
    for name, start in zip(files, starts, strict=True):
        where = f"{name} of {repository}"
        begin, missing, more = len(start), _missing(start, where), b""
        if missing:
            more = source.read(repository, listing.commit, name, begin=begin, most=missing)[0]
        end = LENGTH_BYTES + header_length(start, where)
        found += folded(tensors((start + more)[LENGTH_BYTES:end], where))
    return tuple(folded(found))


def _missing(start: bytes, where: str) -> int:
    """Return how many bytes of a header are not in the start of its file."""
    length = header_length(start, where)
    if length > LARGEST_HEADERS:
        raise InvalidFile(f"its header is {length} bytes long", where=where)
    return max(0, LENGTH_BYTES + length - len(start))
