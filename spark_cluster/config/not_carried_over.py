"""What an import could not carry over, kept with the recipe."""

from __future__ import annotations

from pydantic import Field

from spark_cluster.config.schema import Schema


class NotCarriedOver(Schema):
    """A part of the source that the recipe does not have."""

    what: str = Field(min_length=1, description="the part, as the source has it")
    why: str = Field(min_length=1, description="why the recipe does not have it")
    consequence: str = Field(min_length=1, description="what does not work, or is different")
    blocks: bool = Field(
        default=False,
        description="it cannot work without: `plan` says no-go and `up` refuses until the entry "
        "is removed",
    )

    def __str__(self) -> str:
        return f"not carried over: {self.what} ({self.why}); {self.consequence}"
