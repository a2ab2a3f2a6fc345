"""A model's checkpoint as a source has it: documents, and the headers of its files of weights."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from spark_cluster.errors import InvalidFile
from spark_cluster.models.checkpoint import QUANTIZATION_FILES, Checkpoint
from spark_cluster.models.hub.documents import DocumentSource, HubError, Listing, wrong_answer
from spark_cluster.models.quantization import with_quantization
from spark_cluster.models.safetensors_header import (
    LENGTH_BYTES,
    Tensor,
    folded,
    header_length,
    tensors,
)
from spark_cluster.models.weight_files import INDEX, MOST_FILES, indexed, weight_files

LARGEST_DOCUMENT = 4 << 20
LARGEST_INDEX = 64 << 20
FIRST_READ = 128 << 10
"""Bytes of a file of weights that are asked for at first: most headers are shorter."""
LARGEST_HEADERS = 64 << 20
"""Bytes of a header from the network; the format allows 100 MB, published ones have up to 20."""
AT_A_TIME = 8
TOTAL_S = 90.0
"""Longest that all headers of a model may take, seconds."""


def read_checkpoint(source: DocumentSource, repository: str, listing: Listing) -> Checkpoint:
    """Read what there is to know of a model without its weights.

    Raises:
        HubError: it has no config.json, or the source does not give it.
        InvalidFile: its config.json is none.
    """
    if "config.json" not in listing.names:
        raise HubError(
            "file",
            f"{repository} has no config.json on the hub, so its shape is not known",
            hint="models in other formats (GGUF, LoRA adapters) cannot be planned: name the model "
            "in the safetensors format",
        )
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
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidFile(f"is not JSON: {error}", where=where) from error
    if not isinstance(document, dict):
        raise InvalidFile("should be a JSON object", where=where)
    return document


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
    until = time.monotonic() + TOTAL_S

    def header(name: str) -> list[Tensor]:
        if time.monotonic() > until:
            raise wrong_answer(f"the headers of {repository} took more than {TOTAL_S:g} s")
        where = f"{name} of {repository}"
        return tensors(_header(_reader(source, repository, listing, name), where), where)

    with ThreadPoolExecutor(min(AT_A_TIME, len(files))) as pool:
        lists = list(pool.map(header, files))
    return tuple(folded(tensor for one in lists for tensor in one))


def _reader(
    source: DocumentSource, repository: str, listing: Listing, name: str
) -> Callable[[int, int], bytes]:
    def read(begin: int, most: int) -> bytes:
        return source.read(repository, listing.commit, name, begin=begin, most=most)[0]

    return read


def _header(read: Callable[[int, int], bytes], where: str) -> bytes:
    first = read(0, FIRST_READ)
    length = header_length(first, where)
    if length > LARGEST_HEADERS:
        raise InvalidFile(f"its header is {length} bytes long", where=where)
    text = first[LENGTH_BYTES : LENGTH_BYTES + length]
    if len(text) < length:
        text += read(LENGTH_BYTES + len(text), length - len(text))
    return text
