"""The pool of blocks that vLLM shares among kinds of layers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_cluster.errors import UsageError
from spark_cluster.planning.kv.layers import KvDemand, Pages, ceil, together
from spark_cluster.planning.kv.rules import Rule


@dataclass(frozen=True)
class Pool:
    """Blocks that all groups of layers draw from.

    Attributes:
        kinds: each kind of layer with the number of its groups.
        block_bytes: of one block on one GPU.
    """

    kinds: tuple[tuple[Pages, int], ...]
    block_bytes: int

    @property
    def groups(self) -> int:
        return sum(count for _, count in self.kinds)

    @property
    def smallest_block(self) -> int:
        """Tokens of the shortest block."""
        return min(part.block for part, _ in self.kinds)

    def needed(self, wanted: KvDemand) -> int:
        """Blocks that one request of full length needs at most."""
        return sum(count * part.needed(wanted) for part, count in self.kinds)


def pool(parts: list[Pages], rule: Rule) -> Pool:
    """The pool of a model.

    Layers of one kind are one group, whatever their sizes. Different kinds get pages of one size
    (the smaller ones longer blocks), and each is split into groups of as many layers as the
    rarest kind has.

    Raises:
        UsageError: the pages cannot be made alike.
    """
    if len({_uniform(part) for part in parts}) == 1:
        size = sum(part.layers * part.page for part in parts)
        return Pool(((parts[0], 1),), size)
    alike = together(_one_size(parts, rule))
    fewest = min(part.layers for part in alike)
    most = max(part.layers for part in alike)
    size = most if most < fewest * rule.padding_limit else fewest
    kinds = tuple((part, ceil(part.layers, size)) for part in alike)
    return Pool(kinds, size * alike[0].page)


def _uniform(part: Pages) -> tuple[object, ...]:
    """Kinds that need the same number of blocks for the same tokens are alike."""
    kind = "full" if part.kind == "latent" else part.kind
    return (kind, part.block, part.window, part.fixed, part.more)


def _one_size(parts: list[Pages], rule: Rule) -> list[Pages]:
    largest = max(part.page for part in parts)
    found = []
    for part in parts:
        if largest % part.page == 0 and part.kind != "state":
            found.append(replace(part, block=part.block * (largest // part.page), page=largest))
        elif part.kind == "state" or (rule.pads_attention and part.kind != "latent"):
            found.append(replace(part, page=largest))
        else:
            raise UsageError(
                f"vLLM {rule.since} cannot serve this model with such a KV cache: a page of "
                f"{part.page} bytes does not divide one of {largest}",
                hint="0.24 and newer pad it; or take another KV cache type",
            )
    return found
