"""What is known of a model without its weights: its documents, and the headers of its files.

One reader for the hub, a node that reaches it, and a folder of this machine.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from spark_cluster.config.yamlfile import table_beside
from spark_cluster.errors import InvalidFile
from spark_cluster.models.config import bits, from_config, quantization, with_quantization
from spark_cluster.models.hub import DocumentSource, HubError, Listing
from spark_cluster.models.naming import has_trait, json_object, table
from spark_cluster.models.shape import (
    MATRICES,
    PARTS,
    REPLICATED,
    Geometry,
    Part,
    StoredPart,
    StoredWeights,
)
from spark_cluster.node.store.hub_problems import HubProblem

# The header of a safetensors file: name, type and shape of every tensor, without the weights.
#
# The format: https://huggingface.co/docs/safetensors/index#format. Headers come from anywhere, so
# nothing in them is believed that does not fit the rest.

LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header, little-endian."""
LONGEST_HEADER = 100_000_000
"""More than this the format does not allow, bytes."""
LARGEST_WEIGHTS = 10**15
"""Bytes; a header that says more says nothing."""
LONGEST_NAME = 500
"""Characters of a tensor's name, in which patterns are looked for; real ones have under 200."""

MOST_TENSORS = 2_000_000
MOST_DIMENSIONS = 16

BITS: Mapping[str, int] = table("formats")["dtypes"]
"""Types of the format (safetensors 0.6, `Dtype`) and the bits of an element."""


@dataclass(frozen=True)
class Tensor:
    """A tensor, or several that differ in the number of an expert only.

    Attributes:
        name: as in the file; with `*` for the number of an expert where `count` is above 1.
        dtype: as the header names it; one that is not known here counts by its bytes.
        size: bytes of one.
        count: how many.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    count: int = 1

    @property
    def elements(self) -> int:
        """Elements of one."""
        return math.prod(self.shape)


def header_length(first: bytes, where: str) -> int:
    """The length of a header by the first 8 bytes of its file.

    Raises:
        InvalidFile: it is none that a header can have.
    """
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    if len(first) < LENGTH_BYTES or not 0 < length <= LONGEST_HEADER:
        raise _broken(f"its header would be {length} bytes long", where)
    return length


def tensors(header: bytes, where: str) -> list[Tensor]:
    """The tensors that a header lists.

    Args:
        header: the JSON text.
        where: the file, for messages.

    Raises:
        InvalidFile: it is no header, or tensors in it contradict each other: sizes that do not fit
            their shape, or places that overlap.
    """
    try:
        document = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise _broken(str(error), where) from error
    if not isinstance(document, dict):
        raise _broken("it should be a JSON object", where)
    if len(document) > MOST_TENSORS:
        raise _broken(f"it lists {len(document)} tensors", where)
    if (longest := max(map(len, document), default=0)) > LONGEST_NAME:
        raise _broken(f"the name of a tensor has {longest} characters", where)
    entries = [(n, entry) for n, entry in document.items() if n != "__metadata__"]
    found, places = [], []
    for name, entry in entries:
        tensor, place = _tensor(name, entry, where)
        found.append(tensor)
        places.append(place)
    _must_not_overlap(places, where)
    return found


def _tensor(name: str, entry: Any, where: str) -> tuple[Tensor, tuple[int, int]]:
    if not isinstance(entry, dict):
        raise _broken(f"{name[:100]!r} has no description", where)
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    numbers = _integers(offsets)
    if numbers is None or len(numbers) != 2 or not 0 <= numbers[0] <= numbers[1] <= LARGEST_WEIGHTS:
        raise _broken(f"{name[:100]!r} has no place in the file", where)
    sides = _integers(shape if shape is not None else [numbers[1] - numbers[0]])
    if sides is None or len(sides) > MOST_DIMENSIONS or any(side < 0 for side in sides):
        raise _broken(f"{name[:100]!r} has no shape", where)
    size, bits = numbers[1] - numbers[0], BITS.get(str(dtype))
    if bits is not None and shape is not None and math.prod(sides) * bits != size * 8:
        raise _broken(f"{name[:100]!r} is {size} bytes long, which does not fit its shape", where)
    begin, end = numbers
    return Tensor(name, str(dtype)[:20], tuple(sides), size), (begin, end)


def _integers(value: Any) -> list[int] | None:
    """A list of whole numbers; None for anything else."""
    if not isinstance(value, list):
        return None
    whole = all(isinstance(item, int) and not isinstance(item, bool) for item in value)
    return value if whole else None


def _must_not_overlap(places: list[tuple[int, int]], where: str) -> None:
    last = 0
    for begin, end in sorted(place for place in places if place[0] < place[1]):
        if begin < last:
            raise _broken("two tensors lie in the same place", where)
        last = end


def folded(found: Iterable[Tensor]) -> Iterator[Tensor]:
    """The tensors with those together that differ in the number of an expert only: a model with
    many experts has hundreds of thousands.
    """
    together = Counter[tuple[str, str, tuple[int, ...], int]]()
    for tensor in found:
        key = (_without_expert(tensor.name), tensor.dtype, tensor.shape, tensor.size)
        together[key] += tensor.count
    for (name, dtype, shape, size), count in together.items():
        yield Tensor(name, dtype, shape, size, count)


def _without_expert(name: str) -> str:
    words = name.split(".")
    for place, word in enumerate(words[1:], start=1):
        if word.isdecimal() and "expert" in words[place - 1]:
            words[place] = "*"
    return ".".join(words)


def _broken(what: str, where: str) -> InvalidFile:
    return InvalidFile(
        f"has no safetensors header: {what}",
        where=where,
        hint="the file may be cut short, or a pointer of git-lfs; download it again",
    )


# Which files of a repository or folder hold the weights of a model.

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SUFFIX = ".safetensors"

MOST_FILES = 2000
"""The largest models have about 200."""


def weight_files(names: Iterable[str]) -> list[str]:
    """The files that hold the weights, where no index says it.

    Mistral's `consolidated` files hold them a second time, so they count only without others.
    """
    files = sorted(n for n in names if n.endswith(SUFFIX) and "/" not in n)
    if SINGLE in files:
        return [SINGLE]
    usual = [name for name in files if not name.startswith("consolidated")]
    return usual or files


def must_not_be_gguf(names: Iterable[str], where: str) -> None:
    """Check that the weights are not in GGUF alone: their size and types are not read here.

    Raises:
        InvalidFile: they are.
    """
    files = [name.lower() for name in names]
    others = (SUFFIX, INDEX, ".bin", ".pt", ".pth")
    if any(n.endswith(".gguf") for n in files) and not any(n.endswith(others) for n in files):
        raise InvalidFile(
            "has its weights in GGUF only, which is not planned",
            where=where,
            hint="name the same model in the safetensors format; vLLM reads GGUF only with its "
            "plugin vllm-gguf-plugin, and calls that highly experimental",  # source: vllm-gguf
        )


def indexed(text: bytes, where: str) -> list[str]:
    """The files that an index names.

    Raises:
        InvalidFile: it is not an index, or names files outside its folder.
    """
    mapping = json_object(text, where).get("weight_map")
    if not isinstance(mapping, dict):
        raise InvalidFile("is not a safetensors index: it lacks 'weight_map'", where=where)
    names = sorted({str(name) for name in mapping.values()})
    strange = [n for n in names if "/" in n or "\\" in n or not n.endswith(SUFFIX)]
    if strange or len(names) > MOST_FILES:
        found = repr(strange[0][:100]) if strange else f"{len(names)} files"
        raise InvalidFile(f"is not a safetensors index: it names {found}", where=where)
    return names


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
    formats: Counter[str] = field(default_factory=Counter)

    def add(self, parameters: int, size: float, label: str, *, whole: bool) -> None:
        self.parameters += parameters
        self.bytes += size
        self.whole += size if whole else 0.0
        if parameters:
            self.formats[label] += parameters

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
    together = sum((sums[name].formats for name in MATRICES), Counter[str]())
    most = max(together, key=lambda label: together[label], default="bf16")
    return most if most in KNOWN else "fp8"


_PARTS_BY_NAME: Mapping[str, Mapping[Part, str]] = table_beside(__file__, "tensor_names.toml")
_LONGEST_NUMBER = 6

WHOLE = re.compile(
    r"\.(q_a_proj|kv_a_proj_with_mqa|kv_a_proj|fused_qkv_a_proj|wq_a|wkv_a|indexer"
    r"|fc[12]_latent_proj|shared_expert_gate)\."
)
"""Matrices that every rank holds in full besides routers (vLLM: `ReplicatedLinear`)."""

_WITH_WEIGHTS = re.compile(
    r"(scales?|scale_inv|scale_2|zeros|zero_point|zero_points|g_idx|weight_shape|absmax|quant_map"
    r"|quant_state\..*|bitsandbytes__\w{1,40}|perm|suh|svh)$"
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
