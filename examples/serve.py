"""Serve a recipe and show how it goes, then have the answers verified and the memory listed.

    python examples/serve.py --tp 2
    python examples/serve.py 192.168.1.10 192.168.1.11 --recipe gemma4-31b-nvfp4 --check

Without addresses the nodes are those of `inventory.yaml` in the current folder. What serves is left
up; `--down` stops it at the end, `--only answer` asks one question only. The exit status is that of
the command line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from spark_cluster import Cluster, Options
from spark_cluster.cli.console import visible  # text of nodes and models, safe for a terminal
from spark_cluster.errors import SparkClusterError, VerificationFailed
from spark_cluster.runner.events import Event, NodeFailed, Note, Progress, Result, StageStarted


def main(words: Sequence[str] | None = None) -> int:
    """Do it, and return the exit status."""
    asked = arguments().parse_args(words)
    try:
        with Cluster(asked.address or asked.inventory) as cluster:
            serve(cluster, asked)
    except SparkClusterError as error:
        print(visible(str(error)), file=sys.stderr)
        return error.exit_code
    return 0


def arguments() -> argparse.ArgumentParser:
    """The words of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("address", nargs="*", help="[USER@]HOST of each node, the head first")
    parser.add_argument("--inventory", help="file, or name of a shipped one")
    parser.add_argument("--recipe", help="name or file; by default the inventory's")
    parser.add_argument("--tp", type=int, help="nodes to split each layer over")
    parser.add_argument("--only", action="append", default=[], help="check to run, or rung")
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--down", action="store_true", help="stop the server at the end")
    return parser


def serve(cluster: Cluster, asked: argparse.Namespace) -> None:
    """Bring the server up, verify it, and show what it holds.

    Raises:
        SparkClusterError: a node is not reached, or a step failed.
    """
    for error in cluster.ping().errors.values():
        raise error
    options = Options(check=asked.check)
    with cluster.events(cluster.up, asked.recipe, tp=asked.tp, options=options) as events:
        for event in events:
            show(event)
    done = events.result()
    if done.served is None:
        print(f"check mode: {done.run.changed} changes would be made")
        return
    endpoint = done.served.endpoint
    print(f"{endpoint.model} at {endpoint.url}, after {done.run.seconds['total']:.1f} s")
    verified = cluster.verify(only=asked.only)
    for verdict in verified.verdicts:
        print(visible(f"{verdict.status:8} {verdict.title}: {verdict.found}"))
    for node in cluster.vram().nodes:
        print(f"{node.name}: {node.used_mib} MiB of GPU memory in {len(node.processes)} processes")
    if asked.down:
        cluster.down()
    if verified.failed:
        raise VerificationFailed(f"{len(verified.failed)} checks failed")


def show(event: Event) -> None:
    """Print what a person wants to read of a run."""
    match event:
        case StageStarted(stage=stage):
            print(f"== {stage}")
        case Result(node=node, resource=resource, verdict="change" | "failed" as verdict):
            print(visible(f"{node}: {verdict} {resource}"))
        case Progress(node=node, text=text) | Note(node=node, text=text):
            print(visible(f"{node}: {text}" if node else text))
        case NodeFailed(node=node, error=error):
            print(visible(f"{node}: {error}"))
        case _:
            pass


if __name__ == "__main__":
    sys.exit(main())
