"""What a client of the endpoint has to know (address, model, key, certificate), and how it is told.

Commands and configurations of clients are templates in `templates/clients`. Templates quote every
value: names of models come from the node. A key is named by its variable unless the user asked to
see it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from spark_cluster.config.folders import keeping
from spark_cluster.config.inventory import InventoryNode
from spark_cluster.config.inventory_schema import ServeEntry
from spark_cluster.config.ports import LOOPBACK
from spark_cluster.config.recipe_schema import ModelKind
from spark_cluster.config.schema import Document, Hidden
from spark_cluster.config.secret import SecretReference
from spark_cluster.config.topology import render
from spark_cluster.engine.deployment import address_in, listed_models, running
from spark_cluster.engine.proxy import DESCRIPTION, Access, described, models_of
from spark_cluster.engine.readiness import look_at_endpoint
from spark_cluster.errors import Failed, Unreachable, UsageError
from spark_cluster.node import durable, replies
from spark_cluster.node.containers import ENDPOINT, MODEL
from spark_cluster.resources.unit import quoted_argument
from spark_cluster.runner.dialer import Entrance, SshConnection, carried, held
from spark_cluster.runner.session import Session
from spark_cluster.runner.ssh_route import Target

KEY_VARIABLE = "SPARK_API_KEY"
"""Variable of clients for a key that the inventory takes from elsewhere than a variable."""

_MODEL = re.compile(r"\w[\w ./:@+-]*")
"""Names that mean nothing to a shell, to Compose or to opencode, which fills in variables."""

_HOST = re.compile(r"[\w.:-]+")

QUESTION = "Say hello in one sentence."


@dataclass(frozen=True)
class ClientTarget(Document):
    """What a client has to know of the endpoint.

    Attributes:
        url: the OpenAI base URL.
        model: name to ask for.
        kind: of the model.
        context: longest request, tokens; None when it is not known.
        key_variable: variable with the API key; empty when none is needed.
        key: the key itself, where the user asked to see it.
        ca_file: PEM file that clients have to trust; empty where they know the certificate.
        tunnel: the address is this machine's end of a tunnel.
        question: what the texts ask.
        notes: what has to be done before the address works.
    """

    url: str
    model: str
    kind: ModelKind = "chat"
    context: int | None = None
    key_variable: str = ""
    key: Hidden[str] = field(default="", repr=False)
    ca_file: str = ""
    tunnel: bool = False
    question: Hidden[str] = QUESTION
    notes: tuple[str, ...] = ()


def target_of(
    found: Current,
    serve: ServeEntry,
    head: str,
    *,
    ca_file: str = "",
    port: int | None = None,
    tunnel: bool = False,
    key: str = "",
) -> ClientTarget:
    """Return what clients on this machine have to know.

    Args:
        found: what serves now.
        head: the head's name, which a certificate made on it is for.
        ca_file: where the certificate was written.
        port: of this machine's end of the tunnel; by default the endpoint's own.
        tunnel: also where the endpoint can be reached without one.
        key: the API key, where it is to be shown.

    Raises:
        Failed: the address or the model's name is none that a configuration can hold.
    """
    scheme, host, remote_port = _parts(found.access.url)
    _name_must_be_plain(found.model, head)
    through = tunnel or host == LOOPBACK
    notes = list[str]()
    if through:
        remote_port = port or remote_port
        host, notes = _through_tunnel(found.access, head, remote_port, serve.port)
    needed = found.access.api_key
    if needed:
        notes += _key_notes(serve.api_key)
    return ClientTarget(
        url=f"{scheme}://{f'[{host}]' if ':' in host else host}:{remote_port}/v1",
        model=found.model,
        kind=found.kind,
        context=found.context,
        key_variable=key_variable(serve.api_key) if needed else "",
        key=key if needed else "",
        ca_file=ca_file,
        tunnel=through,
        notes=tuple(notes),
    )


def _name_must_be_plain(model: str, head: str) -> None:
    if not _MODEL.fullmatch(model):
        raise Failed(
            f"the model's name {model!r} cannot stand in a configuration",
            where=head,
            hint="give it a plain one: `model: {served_name: NAME}` in the recipe",
        )


def _through_tunnel(access: Access, head: str, port: int, usual: int) -> tuple[str, list[str]]:
    """Return the host by which this machine's end of a tunnel is asked, and notes on it.

    Args:
        usual: the port that `tunnel` takes unless told otherwise.
    """
    given = f" --port {port}" if port != usual else ""
    notes = [f"the address needs `spark-cluster tunnel{given}` to run on this machine"]
    if access.tls == "self-signed":
        notes.append(f"the certificate is for {head}: add `{LOOPBACK} {head}` to /etc/hosts")
        return head, notes
    if access.tls is not None:
        notes.append(f"the certificate is not for {LOOPBACK}: use a name that it has")
    return LOOPBACK, notes


def _parts(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port.

    Raises:
        Failed: the URL, which a node gave, is none that could be used.
    """
    scheme, host, port = address_in(url) or ("", "", 0)
    if scheme not in ("http", "https") or not _HOST.fullmatch(host):
        raise Failed(f"the endpoint's address {url!r} is not a base URL")
    return scheme, host, port


def key_variable(secret: SecretReference | None) -> str:
    """Return the variable in which clients have the key: the inventory's own, if it names one."""
    return secret.env if secret is not None and secret.env is not None else KEY_VARIABLE


def _key_notes(secret: SecretReference | None) -> list[str]:
    name = key_variable(secret)
    if os.environ.get(name):
        return []
    if secret is not None and secret.env is not None:
        return [f"{name} has to hold the API key: export {name}=..."]
    if secret is not None and secret.file is not None:
        file = shlex.quote(str(secret.file))
        return [f'{name} has to hold the API key: export {name}="$(head -n 1 {file})"']
    return [f"{name} has to hold the API key: read -rs {name}; export {name}"]


def write_certificate(folder: Path, head: str, pem: str) -> Path:
    """Write a certificate that was made on the head to this machine's state folder.

    Raises:
        Failed: it cannot be written.
    """
    path = folder / "certificates" / f"{head}.pem"
    with keeping("the certificate cannot be written", path):
        durable.put_file(path, pem.encode(), 0o644)
    return path


ASKS_S = 5.0
"""Seconds for the list of models, which an engine that is ready has at once."""

MOST_TOKENS = 10**9
"""A longer context than any model has: it is no length."""


@dataclass(frozen=True)
class Current:
    """What serves now.

    Attributes:
        access: who can reach the endpoint, and how it is guarded.
        model: the name to ask for.
        kind: of the model.
        context: longest request, tokens; None when the engine does not answer (yet) or has none.
        certificate: the PEM certificate that clients have to trust; empty where they know it.
    """

    access: Access
    model: str
    kind: ModelKind
    context: int | None = None
    certificate: str = ""


def current(session: Session, node: str) -> Current:
    """Ask the head what serves; its API key is not needed.

    Args:
        node: its name, for errors.

    Raises:
        Failed: nothing serves there.
    """
    state, description = look_at_endpoint(session)
    models, endpoint = models_of(description), running(state.labels, description, None)
    if not models and (state.status == "absent" or endpoint is None):
        raise Failed("nothing serves there", where=node, hint="spark-cluster up starts a server")
    access = described(description) or Access(endpoint.url if endpoint is not None else "")
    # Of several models the first; clients ask for the others at the same address.
    kind: ModelKind = state.kind
    model, base = state.label(MODEL), state.label(ENDPOINT)
    if models:
        model, kind, base = models[0].model, models[0].kind, models[0].url
    context, certificate = _context(session, base, model), _certificate(session, access, node)
    return Current(access, model, kind, context, certificate)


def _context(session: Session, base: str, model: str) -> int | None:
    """Ask the engine itself, behind the proxy, where no key is needed.

    Args:
        base: its own OpenAI base URL; empty where that is not known.
    """
    if not base:
        return None
    answer = session.http(f"{base}/models", timeout=ASKS_S)
    length = replies.at(listed_models(answer).get(model), "max_model_len")
    return length if type(length) is int and 0 < length < MOST_TOKENS else None


def _certificate(session: Session, access: Access, node: str) -> str:
    """The certificate that was made on the node, without its private key.

    Raises:
        Failed: it is an authority's: programs that trust it would trust the node as any server.
    """
    if access.tls != "self-signed" or access.certificate is None:
        return ""
    done = session.run(["openssl", "x509", "-in", access.certificate], timeout=ASKS_S)
    if done.status != 0:
        return ""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with contextlib.suppress(ssl.SSLError, ValueError):
        trusting.load_verify_locations(cadata=done.stdout)
        if trusting.cert_store_stats() == {"x509": 1, "crl": 0, "x509_ca": 0}:
            return done.stdout
    raise Failed(
        "its certificate is not that of one server, as `up` makes it",
        where=node,
        hint=f"look at it there: openssl x509 -text -in {access.certificate}",
    )


CLIENT_TEMPLATES = Path(__file__).parent / "templates" / "clients"

NO_KEY = "none"
"""In place of a key where a client insists on one and the endpoint asks for none."""

WEBUI_PORT = 3000
"""Port of this machine's loopback on which Open WebUI is reached."""

OUTPUT_TOKENS = 8192
"""Tokens of an answer that opencode leaves room for, where the context has as many twice over."""


@dataclass(frozen=True)
class Snippet(Document):
    """A ready-made text for one client.

    Attributes:
        client: its name on the command line.
        title: what it is, for people.
        file: where it belongs; empty for what is pasted into a shell.
        text: ends with a newline.
        notes: what to do or know besides.
    """

    client: str
    title: str
    file: str
    text: str
    notes: tuple[str, ...] = ()


_FILE = tomllib.loads((CLIENT_TEMPLATES / "clients.toml").read_text(encoding="utf-8"))

CLIENTS: Mapping[str, Mapping[str, Any]] = _FILE["clients"]
"""Client, which is the name of its template, to its `title`, its `file` and the `kinds` it asks
for."""


def snippets(target: ClientTarget) -> list[Snippet]:
    """Return a snippet for every client that has a use for the model."""
    fitting = (client for client, about in CLIENTS.items() if target.kind in about["kinds"])
    return [snippet(client, target) for client in fitting]


def snippet(client: str, target: ClientTarget) -> Snippet:
    """Return the text for a client.

    Args:
        client: a key of CLIENTS that asks for the model's kind.
    """
    about = CLIENTS[client]
    path, asked = _request(target.kind, target.question)
    values = {
        **vars(target),
        "client": client,
        "key": target.key or NO_KEY,
        "by_variable": bool(target.key_variable and not target.key),
        "root": target.url.removesuffix("/v1"),
        "no_key": NO_KEY,
        "path": path,
        "body": json.dumps({"model": target.model, **asked}),
        "webui_port": WEBUI_PORT,
        "output_tokens": OUTPUT_TOKENS,
        "sh": shlex.quote,
        "py": repr,
        "json": partial(json.dumps, ensure_ascii=False),
        "compose": lambda text: json.dumps(text).replace("$", "$$"),
    }
    text = render(CLIENT_TEMPLATES, f"{client}.j2", **values)
    notes = render(CLIENT_TEMPLATES, "notes.j2", **values).splitlines()
    return Snippet(client, about["title"], about.get("file", ""), text, tuple(notes))


def _request(kind: ModelKind, question: str) -> tuple[str, dict[str, Any]]:
    """Return the path below the base URL, and what is sent besides the model, for a question."""
    request = _FILE["requests"][kind]
    asked = json.dumps(request["asked"]).replace('"{question}"', json.dumps(question))
    return request["path"], json.loads(asked)


# A tunnel: a port of this machine to the endpoint, connected again when the SSH link is cut.
#
# The endpoint's address as the head sees it is asked over SSH alone: no agent, no root.

PAUSES_S = (1.0, 30.0)
"""Seconds between two tries to connect again: at first, and at most; each is twice the last."""

READS_WITHIN_S = 10.0
"""Seconds for reading a small file of the node."""

LARGEST = 16 * 1024
"""Bytes of it that are read."""


Find = Callable[[SshConnection], str]
"""Asks the node for the endpoint's base URL, as the node reaches it."""


@dataclass(frozen=True)
class TunnelEvent:
    """News of a tunnel.

    Attributes:
        event: `open` (it carries connections), `cut` (the SSH connection ended, or could not be
            made again), `refused` (the node does not connect to the endpoint's port).
        node: the node it goes through.
        message: the reason; empty for `open`.
        url: the endpoint's base URL on this machine, of `open`.
        to: the same as the node reaches it.
        retry_s: seconds until the next try, of `cut`.
        hint: what to do; empty when there is nothing to add.
    """

    event: Literal["open", "cut", "refused"]
    node: str
    message: str = ""
    url: str = ""
    to: str = ""
    retry_s: float | None = None
    hint: str = ""

    def __str__(self) -> str:
        if self.event == "open":
            return f"{self.url} leads to {self.to} of {self.node}"
        retry = "" if self.retry_s is None else f"; the next try is in {self.retry_s:g} s"
        return f"{self.node}: {self.message}{retry}"


def keep_open(target: Target, find: Find, port: int) -> Iterator[TunnelEvent]:
    """Carry connections to an endpoint until the program is interrupted; again when it is cut.

    Args:
        target: the node that it goes through.
        find: asks a connected node where the endpoint is.
        port: of this machine's loopback, which is held meanwhile; 0 for a free one.

    Yields:
        What happens.

    Raises:
        Unreachable: the first connection could not be made; later ones are tried again.
        UsageError: the port cannot be listened on, the first time.
    """
    with held(port) as entrance:
        yield from _kept_open(target, find, entrance)


def _kept_open(target: Target, find: Find, entrance: Entrance) -> Iterator[TunnelEvent]:
    pause, event = 0.0, partial(TunnelEvent, node=target.node.name)
    while True:
        try:
            with contextlib.closing(SshConnection(target)) as connection:
                connection.open()
                to, shown = find(connection), ""
            far = urlsplit(to)
            host, to_port = far.hostname or LOOPBACK, far.port or 80
            with carried(target, entrance, host, to_port) as news:
                pause = PAUSES_S[0]
                here = far._replace(netloc=f"{LOOPBACK}:{entrance.server_address[1]}").geturl()
                yield event("open", url=here, to=to)
                for kind, why in news:
                    if kind == "cut":
                        yield event(kind, message=why, retry_s=pause)
                    elif why != shown:
                        hint = "spark-cluster status shows what serves"
                        shown, hint = why, hint if "nothing listens" in why else ""
                        yield event(kind, message=why, hint=hint)
        except (Unreachable, UsageError) as error:
            if not pause:
                raise
            pause = min(2 * pause, PAUSES_S[1])
            yield event("cut", message=error.message, retry_s=pause, hint=error.hint)
        time.sleep(pause)


def ask_head(connection: SshConnection) -> Access | None:
    """Return what the proxy's own file on the head says; None where there is no proxy.

    Raises:
        Unreachable: the connection was lost, or nothing came in time.
    """
    channel = connection.start(["cat", DESCRIPTION])
    found, until = b"", time.monotonic() + READS_WITHIN_S
    try:
        while data := channel.receive(max(0.1, until - time.monotonic())):
            found += data
            if len(found) > LARGEST or time.monotonic() > until:
                break
    except (OSError, EOFError) as error:
        why = str(error) or "nothing came in time"
        raise Unreachable(
            f"{DESCRIPTION} could not be read: {why}", where=connection.target.node.name
        ) from None
    finally:
        channel.close()
    return described(found.decode(errors="replace"))


def url_on_head(access: Access | None, serve: ServeEntry, head: InventoryNode) -> str:
    """Return the endpoint's base URL, for a connection that the head makes.

    Args:
        access: what the proxy says is in force; None where the inventory says it.
    """
    if access is not None and address_in(access.url) is not None:
        return access.url
    host = LOOPBACK
    if not serve.on_loopback:
        host = head.address if serve.bind == "management" else serve.bind
    scheme = "http" if serve.tls is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{serve.port}/v1"


SYSTEMCTL_S = 30.0
"""Seconds that systemctl has: it starts nothing that it waits for."""

TEMPLATES = Path(__file__).with_name("templates")


def unit_name(node: str) -> str:
    """Return the unit's name: one tunnel for each head."""
    return f"spark-cluster-tunnel-{node}.service"


def unit_folder(environment: dict[str, str], home: Path) -> Path:
    """Return the folder of the user's own units (systemd.unit(5))."""
    configured = environment.get("XDG_CONFIG_HOME", "")
    base = Path(configured) if configured.startswith("/") else home / ".config"
    return base / "systemd" / "user"


def unit_text(node: str, argv: Sequence[str]) -> str:
    """Return the unit's file.

    Args:
        argv: the command, its program as an absolute path.

    Raises:
        UsageError: a word of it has a control character.
    """
    for word in argv:
        if not word.isprintable():
            raise UsageError(f"{word!r} cannot stand in a systemd unit: it has a control character")
    command = " ".join(map(quoted_argument, argv))
    return render(TEMPLATES, "tunnel.service.j2", node=node, command=command)


def install(folder: Path, node: str, argv: Sequence[str]) -> Path:
    """Write the unit, start it now and at each login; return its file.

    Raises:
        UsageError: this machine has no systemd.
        Failed: systemctl failed.
    """
    _require_systemd()
    _systemctl("show-environment")  # without a session nothing is written
    path = folder / unit_name(node)
    durable.make_folder(folder, 0o755)
    durable.write_file(path, unit_text(node, argv).encode(), 0o644)
    _systemctl("daemon-reload")
    _systemctl("enable", path.name)
    _systemctl("restart", path.name)
    return path


def remove(folder: Path, node: str) -> bool:
    """Stop the service and remove its file; return False when there was none.

    Raises:
        UsageError: this machine has no systemd.
        Failed: systemctl failed.
    """
    path = folder / unit_name(node)
    if not path.exists():
        return False
    _require_systemd()
    _systemctl("disable", "--now", path.name)
    path.unlink(missing_ok=True)
    _systemctl("daemon-reload")
    return True


def _require_systemd() -> None:
    if shutil.which("systemctl") is None:
        what = "macOS has launchd instead" if sys.platform == "darwin" else "found no systemctl"
        raise UsageError(
            f"--install makes a service of systemd: {what}",
            hint="docs/how-to/reach-the-endpoint.md has the file for launchd; "
            "in a terminal, `spark-cluster tunnel` needs neither",
        )


def _systemctl(*words: str) -> None:
    argv = ["systemctl", "--user", *words]
    try:
        done = subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SYSTEMCTL_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(argv)}: not done within {SYSTEMCTL_S:g} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it printed nothing"]
        raise Failed(
            f"{' '.join(argv)} ended with status {done.returncode}: {lines[-1]}",
            hint="it needs a login session of systemd (not `su` or `sudo`); "
            "`loginctl enable-linger` keeps one without a login",
        )
