"""How many nodes share a model: tensor parallel, pipeline parallel, data parallel."""

from __future__ import annotations

from pydantic import Field, model_validator

from spark_cluster.config.schema import Schema

MOST_NODES = 64

REPLICAS_REFUSED = (
    "data_parallel: {}: the executors here join the ranks of one replica, and a Spark has one GPU"
)
REPLICAS_INSTEAD = (
    "remove data_parallel, and serve one replica on each Spark (`up --replicas 2`), or share the "
    "model with --tp"
)


class TensorParallel(Schema):
    """The tensor-parallel sizes: the numbers of nodes that can share each layer."""

    min: int = Field(default=1, ge=1, le=MOST_NODES, description="fewest nodes it fits on")
    max: int = Field(
        default=2,
        ge=1,
        le=MOST_NODES,
        description=f"most nodes it can be split over; {MOST_NODES}: no limit is known",
    )
    default: int | None = Field(
        default=None,
        ge=1,
        le=MOST_NODES,
        description="size when --tp is not given (default: as many nodes as there are)",
    )

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
    def usual(self) -> range:
        """The sizes to look at when none is named: all, or those of two Sparks and the default."""
        last = max(2, self.min, self.default or 1) if self.unlimited else self.max
        return range(self.min, last + 1)

    def __str__(self) -> str:
        if self.unlimited:
            return f"{self.min} or more"
        return f"{self.min}" if self.min == self.max else f"{self.min} to {self.max}"
