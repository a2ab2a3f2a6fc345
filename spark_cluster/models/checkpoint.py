"""What is known of a model without its weights: its documents, and the headers of its files.

One reader for the hub, a node that reaches it, and a folder of this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spark_cluster.errors import InvalidFile
from spark_cluster.models.config import from_config
from spark_cluster.models.counting import count
from spark_cluster.models.hub.documents import DocumentSource, HubError, Listing
from spark_cluster.models.quantization import with_quantization
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
from spark_cluster.models.shape import Geometry
from spark_cluster.models.tables import json_object
from spark_cluster.node.store.hub_problems import HubProblem

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
