"""`models verify`: read models and compare them with the hub's hashes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.models_nodes import model_nodes, short
from spark_cluster.cli.visible import visible
from spark_cluster.errors import VerificationFailed
from spark_cluster.node.sizes import gigabytes

if TYPE_CHECKING:
    from spark_cluster.engine.copies.upkeep import VerifiedModel


@click.command()
@click.argument("models", nargs=-1, metavar="[ORG/NAME[@REVISION]]...")
@click.pass_context
def command(ctx: click.Context, models: tuple[str, ...]) -> None:
    """Read models on their nodes and compare each file with the hub's hash; all without a name.

    Each byte is read once, in a unit of the node that goes on without this command. Exit status 5
    when a file is damaged or missing; `spark-cluster models repair` fetches just these.
    """
    from spark_cluster.engine.copies.upkeep import stored, verify

    app: App = ctx.obj
    with model_nodes(app) as nodes:
        found = verify(nodes, stored(nodes, []), models, progress)
    if app.as_json:
        app.print_json({"models": [dataclasses.asdict(one) for one in found]})
        ctx.exit(0 if all(one.sound for one in found) else VerificationFailed.exit_code)
    for one in found:
        app.console.print(described(one), soft_wrap=True)
    bad = [one for one in found if not one.sound]
    if bad:
        raise VerificationFailed(
            f"{len(bad)} of {len(found)} models are damaged or not whole",
            hint=f"spark-cluster models repair {' '.join(_names(bad))}",
        )


def progress(node: str, text: str) -> None:
    """Show a line of progress where people look and programs do not."""
    click.echo(visible(f"{node}: {text}"), err=True)


def described(model: VerifiedModel) -> str:
    """Return a line about one model, and a line for each file of it that is not sound."""
    name = f"{model.node}  {short(model.repository, model.commit)}"
    if model.error:
        return f"{name}  cannot be read: {model.error}"
    if model.sound:
        unchecked = f", {len(model.unchecked)} files without a hash" if model.unchecked else ""
        return f"{name}  sound, {gigabytes(model.read)} read{unchecked}"
    lines = [f"{name}  {len(model.damaged)} damaged, {len(model.missing)} missing"]
    lines += [f"  damaged  {path}" for path in model.damaged]
    lines += [f"  missing  {path}" for path in model.missing]
    return "\n".join(lines)


def _names(models: Sequence[VerifiedModel]) -> list[str]:
    return sorted({f"{one.repository}@{one.commit}" for one in models})
