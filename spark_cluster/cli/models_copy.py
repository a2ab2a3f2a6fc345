"""`models copy`: a model from the node that has it to those that lack it."""

from __future__ import annotations

from functools import partial

import click

from spark_cluster.cli.app import App


@click.command()
@click.argument("model", metavar="ORG/NAME[@REVISION]|/FOLDER")
@click.option(
    "--from", "source", default="", metavar="NODE", help="Node to copy from (default: the first "
    "that has the whole model; of a folder the first of the run).",
)  # fmt: skip
@click.option(
    "--to", "targets", multiple=True, metavar="NODE", help="Node to copy to; repeatable (default: "
    "all others).",
)  # fmt: skip
@click.option(
    "--no-encrypt",
    is_flag=True,
    help="Leave encryption out, which takes less CPU time. Contents are still checked, but whoever "
    "listens on the way can read them.",
)
@click.option(
    "--streams",
    type=click.IntRange(1, 16),
    help="Connections to each address of a sender (default: 4; on a receiver of fewer than 16 "
    "cores 2 or 3).",
)
@click.pass_obj
def command(
    app: App,
    model: str,
    source: str,
    targets: tuple[str, ...],
    no_encrypt: bool,
    streams: int | None,
) -> None:
    """Copy a model, or a folder of plain files, between nodes, over the fabric if there is one.

    Only what is missing is moved, each file is checked by the hub's hash as it arrives, and a copy
    that was cut goes on where it ended. It goes on when this command is interrupted; run the
    command again to see it. A folder is named by its absolute path, the same on all nodes; its
    files are hashed on the node that sends them, and read again only when they have changed.
    """
    app.connect_early()
    from spark_cluster.engine.copies.copy_model import copy_model, copy_path
    from spark_cluster.engine.copies.state import Wanted
    from spark_cluster.runner.options import Options

    name, _, revision = model.partition("@")
    with app.play("models copy", app.nodes, Options()) as run:
        copying = (
            partial(copy_path, run.open(), model)
            if model.startswith("/")
            else partial(copy_model, run.open(), Wanted(name, revision or "main"))
        )
        done = copying(source=source, targets=targets, encrypt=not no_encrypt, streams=streams or 0)
        run.finish()
        if app.as_json:
            app.print_json(run.to_dict(model=model, copies=[one.to_dict() for one in done]))
            return
        for one in done:
            app.console.print(str(one), soft_wrap=True)
