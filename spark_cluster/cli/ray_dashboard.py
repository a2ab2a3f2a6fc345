"""`ray dashboard`: Ray's own page at a port of this machine."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.ended_by_signals import ended_by_signals
from spark_cluster.cli.visible import visible
from spark_cluster.config.ports import LOOPBACK

if TYPE_CHECKING:
    from spark_cluster.cli.app import App
    from spark_cluster.engine.endpoint_tunnel import TunnelEvent


def run(app: App, port: int | None, *, with_token: bool, open_it: bool) -> None:
    """Lead a port to Ray's page until Ctrl-C.

    Args:
        port: of this machine; None takes a free one.
        with_token: print the cluster's token.
        open_it: open the page in the browser.
    """
    from spark_cluster.engine.endpoint_tunnel import TunnelEvent, keep_open
    from spark_cluster.runner.tunnel import free_port

    there, token = _asked(app)
    head, dialer = app.inventory.head, app.cluster.dialer
    shown = {"token": token} if with_token else {}

    def tell(url: str) -> None:
        if app.as_json:
            app.print_json({"url": url, **shown})
            return
        click.echo(visible(url))
        if with_token:
            click.echo(visible(f"token: {token}"))
        else:
            click.echo("it asks for the cluster's token, which --token prints")
        click.echo("Ctrl-C ends it.")

    opened = threading.Event()

    def report(event: TunnelEvent) -> None:
        if event.event != "open":
            retry = "" if event.retry_s is None else f"; the next try is in {event.retry_s:g} s"
            click.echo(visible(f"{event.node}: {event.message}{retry}"), err=True)
        elif not opened.is_set():
            opened.set()
            tell(event.url)
            if open_it:
                _open(event.url)

    with contextlib.suppress(KeyboardInterrupt), ended_by_signals():
        if head.is_local:
            with dialer.forward(head, there) as found:
                report(TunnelEvent("open", head.name, url=f"http://{LOOPBACK}:{found}"))
                threading.Event().wait()
        target, here = dialer.target(head), port or free_port()
        url = f"http://{LOOPBACK}:{there}"
        for event in keep_open(target, lambda _: url, here):
            report(event)


def _asked(app: App) -> tuple[int, str]:
    """Return the dashboard's port on the head, and the cluster's token."""
    from spark_cluster.engine.job_client import token_of
    from spark_cluster.engine.ray_cluster import running_port

    head = [app.inventory.head]
    with app.play("ray dashboard", head, change=False, gather_facts=False) as run:
        play = run.open()
        return running_port(play), token_of(play)


def _open(url: str) -> None:
    import webbrowser

    webbrowser.open(url)
