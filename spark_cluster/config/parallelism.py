"""How many nodes share a model: tensor parallel, pipeline parallel, data parallel."""

from __future__ import annotations

from pydantic import Field, model_validator

from spark_cluster.config.schema import Schema

MOST_NODES = 64

REPLICAS_INSTEAD = (
    "leave data_parallel (--data-parallel) out, and serve one replica on each Spark "
    "(`up --replicas 2`), or share the model with --tp"
)


def why_not_data_parallel(
    data_parallel: int, *, engine: str, executor: str | None, tp: int, stages: int
) -> str:
    """Return why so many data-parallel ranks cannot be started here; empty when they can.

    Args:
        executor: None where it is not known.
        tp: tensor-parallel size.
        stages: of layers.
    """
    if data_parallel == 1:
        return ""
    if engine != "vllm":
        why = "only vLLM's data parallel mode is started here"
    elif executor not in (None, "ray"):
        why = f"Ray joins its ranks, and the executor is {executor}"
    elif tp * stages > 1:
        why = f"each rank is on one node here, and the recipe shares the model over {tp * stages}"
    else:
        return ""
    return f"data_parallel: {data_parallel}: {why}"


class TensorParallel(Schema):
    """The tensor-parallel sizes: the numbers of nodes that can share each layer."""

    min: int = Field(default=1, ge=1, le=MOST_NODES)
    """fewest nodes it fits on"""
    max: int = Field(
        default=2,
        ge=1,
        le=MOST_NODES,
        description=f"most nodes it can be split over; {MOST_NODES}: no limit is known",
    )
    default: int | None = Field(default=None, ge=1, le=MOST_NODES)
    """size when --tp is not given (default: the largest power of two, or `max`, that there are
    nodes for)"""

    @model_validator(mode="after")
    def _ordered(self) -> TensorParallel:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is more than max ({self.max})")
        if self.default is not None and not self.min <= self.default <= self.max:
            raise ValueError(
                f"default ({self.default}) is outside of min ({self.min}) to max ({self.max})"
            )
        return self

    @property
    def unlimited(self) -> bool:
        """True if nothing says over how many nodes it can be split at most."""
        return self.max == MOST_NODES

    @property
    def usual(self) -> tuple[int, ...]:
        """The sizes to look at when none is named, up to `max`, or to two Sparks or the default.

        They are powers of two and what is named here: a layer's heads are divided evenly, and those
        of nearly every model by no other size, such as three.
        """
        last = max(2, self.min, self.default or 1) if self.unlimited else self.max
        named = {self.min, last, self.default or self.min}
        powers = {1 << power for power in range(last.bit_length())}
        return tuple(sorted(size for size in named | powers if self.min <= size <= last))

    def size_for(self, nodes: int) -> int:
        """Return the size when none is asked for, with so many nodes; at least 1.

        The largest of the usual ones that the nodes suffice for, up to the default.
        """
        most = self.default or max(self.usual)
        return max((size for size in self.usual if size <= min(nodes, most)), default=max(1, nodes))

    def __str__(self) -> str:
        if self.unlimited:
            return f"{self.min} or more"
        return f"{self.min}" if self.min == self.max else f"{self.min} to {self.max}"
