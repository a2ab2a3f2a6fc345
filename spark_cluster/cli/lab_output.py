"""What the commands of `lab` print: progress with seconds, and one result."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Clock:
    """Progress lines with the seconds since the start, on standard error."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    def __call__(self, text: str) -> None:
        click.echo(f"[{time.monotonic() - self.started:6.1f} s] {text}", err=True)


def wants_json(here: bool = False) -> bool:
    """Return whether --json was given, to the command or to the program."""
    app = click.get_current_context().find_object(App)
    return here or (app is not None and app.as_json)


def say(document: DataclassInstance, text: str, *, as_json: bool = False, **more: bool) -> None:
    """Print one result, for people or as a JSON document.

    Args:
        more: keys of the JSON document next to those of `document`.
    """
    found = {**asdict(document), **more}
    click.echo(json.dumps(found, indent=2) if wants_json(as_json) else text)
