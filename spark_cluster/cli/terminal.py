"""The one console of all commands: what comes from elsewhere is shown, never parsed or obeyed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

import rich.console
from rich.console import ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.text import Text

from spark_cluster.cli.console import visible

__all__ = ["Console", "Group", "RenderableType"]


class Console(rich.console.Console):
    """Prints strings as they are: no markup, no emoji codes, control characters escaped.

    Args:
        stderr: standard error, instead of standard output.
        file: somewhere else, for tests.
        width: columns; by default the terminal's.
    """

    def __init__(
        self, *, stderr: bool = False, file: IO[str] | None = None, width: int | None = None
    ) -> None:
        super().__init__(
            stderr=stderr, file=file, width=width, markup=False, emoji=False, highlight=False
        )

    def on_broken_pipe(self) -> None:
        """Leave it to the program's own end, as for everything else that is printed."""
        raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:  # of rich itself: moves the cursor of a live display
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)
