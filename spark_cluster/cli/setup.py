"""`setup`: a guided path from nothing to a verified endpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import click

from spark_cluster.cli.options import Command, Port
from spark_cluster.cli.setup_choices import Asked, Model, model, nodes, own_answers, write
from spark_cluster.cli.setup_flow import Asker, Flow, Step, Stopped
from spark_cluster.cli.setup_login import Login

WOULD_ASK = (
    "the addresses of the Sparks      --nodes ADDRESS[,ADDRESS]",
    "the user there                   --user NAME",
    "the password, at first contact   --password-env NAME",
    "what to serve                    --want chat|coding|vision|embedding, or --recipe NAME",
    "for one user, or for many        --for latency|throughput",
)


@click.command(cls=Command)
def command(
    ctx: click.Context,
    *,
    addresses: str = "",
    user: str | None,
    identity_file: str | None,
    port: Port | None,
    interface: str | None,
    password_env: str | None,
    passwordless_sudo: bool,
    want: Literal["chat", "coding", "vision", "embedding"] | None,
    speed: Literal["latency", "throughput"] | None,
    recipe: str | None,
    yes: bool,
    check: bool,
) -> None:
    """Go from nothing to a verified endpoint, step by step.

    Finds Sparks on the local network, writes inventory.yaml, accepts host keys (trust), logs in
    with the password once, makes the nodes ready (provision), proposes what to serve, and serves
    it (up). Every step shows the command that it runs; run again, setup goes on where it stopped.
    --yes also accepts host keys that are new.

    Args:
        addresses (--nodes ADDRESS[,ADDRESS]): Management addresses of the Sparks, the head first;
            without it they are looked for.
        user (NAME): User to log in as (default: as ~/.ssh/config says).
        identity_file (FILE): Private key (default: agent and ~/.ssh).
        port: Port of the nodes' sshd.
        interface (ADDRESS): Address of the one interface of this machine on which to look for
            Sparks.
        password_env (NAME): Environment variable with the login password, instead of a question.
        passwordless_sudo: Have `provision` let the user use sudo without a password.
        want: What the model is for (with --yes: chat).
        speed (--for): Compare recipes for one user, or for 16 at once (with --yes: latency).
        recipe (NAME): What to serve, instead of a proposal.
        yes (-y, --yes): Ask nothing: consent to every step.
        check: Change nothing; show the steps and their commands.
    """
    asker = Asker(yes, check)
    asker.must_be_able(WOULD_ASK)
    flow = Flow(ctx.find_root().command, ctx.obj, asker)
    words = tuple(filter(None, (word.strip() for word in addresses.split(","))))
    asked = Asked(words, user, identity_file, port, interface, recipe)
    login = Login(flow, password_env, passwordless_sudo=passwordless_sudo)
    status = 0
    try:
        _all(flow, asked, login, (recipe, want, speed))
        flow.show_end()
    except Stopped as stopped:
        flow.show_way_on(stopped)
        status = stopped.status
    finally:
        flow.app.cluster.prompts.forget()
    if flow.app.as_json:
        flow.app.print_json({"ok": status == 0, "check": check, "steps": flow.steps})
    ctx.exit(status)


def _all(
    flow: Flow, asked: Asked, login: Login, wish: tuple[str | None, str | None, str | None]
) -> None:
    """Go through the steps.

    Raises:
        Stopped: one of them did not succeed.
    """
    with flow.step("nodes", "which Sparks") as step:
        nodes(flow, step, asked)
    with flow.step("trust", "their host keys") as step:
        _trust(flow, step)
    with flow.step("login", "log in") as step:
        _log_in(flow, step, login)
    with flow.step("provision", "make them ready") as step:
        _provision(flow, step, login)
    served = None if any(wish) or flow.steps[0].state != "nothing to do" else _served(flow)
    with flow.step("model", "what to serve") as step:
        if served:
            flow.nothing_to_do(step, served)
        else:
            chosen = model(flow, step, *wish)
    with flow.step("up", "serve it") as step:
        if served:
            flow.nothing_to_do(step, "`status` finds nothing wrong")
        else:
            _up(flow, step, chosen)


def _served(flow: Flow) -> str | None:
    """Return what serves already, in words; None when nothing does, or something is wrong."""
    found = flow.document("status")
    if found is None or found.get("state") != "serving":
        return None
    return f"{found['model']} is served at {found['endpoint']}"


def _trust(flow: Flow, step: Step) -> None:
    if not flow.ask.silent:
        flow.text("A name on the network is no proof. Compare the fingerprint with the node's own: "
                  "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub prints it there.")  # fmt: skip
    flow.run(step, "trust", *(["--yes"] if flow.ask.yes else []))


def _log_in(flow: Flow, step: Step, login: Login) -> None:
    """Log in, and take in the Spark at the other end of the cable if there is one."""
    if flow.check and flow.app.inventory_is_missing:
        step.state = "would run"
        flow.say("  logs in by key, else with the password, which is asked for once")
        return
    login.log_in(step)
    if _second(flow, step, login):
        _trust(flow, step)
        login.log_in(step)


def _second(flow: Flow, step: Step, login: Login) -> bool:
    """Propose the Spark at the other end of the only node's cable; return whether it is taken."""
    answers = own_answers(flow)
    for peer in login.peers:
        if peer.address is None:
            who = peer.host or f"a machine ({peer.mac})"
            flow.note("info", f"{who} is at the other end of its cable; its management address is "
                      "not known: name both with --nodes to use them together")  # fmt: skip
        elif answers is None or flow.ask.silent:
            flow.note("info", f"{peer.host} ({peer.address}) is at the other end of its cable; to "
                      f"use both: --nodes {flow.app.nodes[0].address},{peer.address}")  # fmt: skip
        elif flow.ask.offer(
            f"{peer.host} ({peer.address}) is at the other end of its cable. Use both?"
        ):
            both = (*answers.addresses, peer.address)
            write(flow, step, replace(answers, addresses=both))
            flow.count = len(both)
            return True
    return False


def _provision(flow: Flow, step: Step, login: Login) -> None:
    words = ["provision", *login.options]
    if not flow.check and not login.with_password:
        found = flow.document("provision", "--check")
        if found is not None and found.get("ok") and not found.get("changed"):
            flow.nothing_to_do(step, "the nodes are ready: provision --check would change nothing")
            return
    question = "Run `provision`? It installs what is missing, and can be reverted."
    flow.offer(step, question, *words)


def _up(flow: Flow, step: Step, chosen: Model | None) -> None:
    words = ["up", *(chosen.option.split() if chosen else [])]
    served = None if flow.app.inventory_is_missing else flow.app.inventory.serve.recipe
    if chosen is not None and chosen.recipe != served and not flow.app.inventory_is_missing:
        words += ["--recipe", chosen.recipe]
    question = "Run `up`? The first time it downloads the image and the model."
    flow.offer(step, question, *words)
