"""The floor: a bare agent over paramiko, with nothing that makes a tool usable.

One connection and one `python3` a node, a script and the play on its standard input, one line of
JSON back. No journal, no check mode, no diff, no events, no lock, no retries, no clear errors.

`python -m benchmarks.engine.floor SITE.json` does the play on the nodes named there.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import paramiko

AGENT = r"""
import grp, json, os, pwd, subprocess, sys

def ensure_directory(path):
    if os.path.isdir(path):
        return False
    os.mkdir(path, 0o755)
    return True

def ensure_file(path, text):
    try:
        with open(path) as file:
            if file.read() == text:
                return False
    except FileNotFoundError:
        pass
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)
    return True

def ensure_line(path, line):
    try:
        with open(path) as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        lines = []
    return line not in lines and ensure_file(path, "\n".join([*lines, line, ""]))

def ensure_group(name, gid):
    try:
        return grp.getgrnam(name).gr_gid != gid
    except KeyError:
        subprocess.run(["groupadd", "-g", str(gid), name], check=True)
        return True

def ensure_user(name, uid, group):
    try:
        return pwd.getpwnam(name).pw_uid != uid
    except KeyError:
        add = ["useradd", "-m", "-U", "-u", str(uid), "-G", group, "-s", "/bin/sh", name]
        subprocess.run(add, check=True)
        return True

def check_directory(path):
    if not os.path.isdir(path):
        raise SystemExit(path + " is not a directory")

def read_sysctl(name):
    subprocess.run(["sysctl", "-n", name], check=True, stdout=subprocess.DEVNULL)

play = json.loads(sys.stdin.readline())
changed = sum(bool(globals()[what](*values)) for what, *values in play)
print(json.dumps({"changed": changed, "total": len(play)}), flush=True)
"""
_BOOTSTRAP = "import sys; exec(sys.stdin.read({length}))"


def perform(site: dict[str, Any], address: str, play: bytes, results: dict[str, Any]) -> None:
    """Do the play on one node."""
    sock = socket.create_connection((address, 22), 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    known = paramiko.HostKeys(site["known_hosts"]).lookup(address)
    if known is None:
        raise SystemExit(f"no host key of {address}")
    transport = paramiko.Transport(sock)
    transport.get_security_options().key_types = list(known)
    transport.start_client(timeout=10)
    if known[transport.get_remote_server_key().get_name()] != transport.get_remote_server_key():
        raise SystemExit(f"the host key of {address} is another one")
    transport.auth_publickey(site["user"], paramiko.Ed25519Key(filename=site["key"]))
    channel = transport.open_session()
    bootstrap = _BOOTSTRAP.format(length=len(AGENT))
    channel.exec_command(f"sudo python3 -I -S -u -c '{bootstrap}'")
    channel.sendall(AGENT.encode() + play)
    results[address] = json.loads(channel.makefile("rb").readline())
    transport.close()


def play_from(site: dict[str, Any]) -> bytes:
    """The play, templates rendered, as one line of JSON."""
    import jinja2

    from benchmarks.engine import work

    sources = Path(site["sources"])
    engine = jinja2.Environment(autoescape=False, trim_blocks=True, keep_trailing_newline=True)
    play: list[tuple[Any, ...]] = [("ensure_directory", path) for path in work.DIRECTORIES]
    for path, source in work.COPIES:
        play.append(("ensure_file", path, (sources / source).read_text("utf-8")))
    for path, source in work.TEMPLATES:
        template = engine.from_string((sources / source).read_text("utf-8"))
        play.append(("ensure_file", path, template.render(work.VARIABLES)))
    play += [("ensure_line", path, line) for path, line in work.LINES]
    play += [("ensure_group", *group) for group in work.GROUPS]
    play += [("ensure_user", *user) for user in work.USERS]
    play += [("check_directory", path) for path in work.CHECKS]
    play += [("read_sysctl", name) for name in work.SYSCTLS]
    return json.dumps(play).encode() + b"\n"


def main(site_file: str) -> None:
    """Do the play on all nodes in parallel and print what each changed."""
    site = json.loads(Path(site_file).read_text("utf-8"))
    play = play_from(site)
    results: dict[str, Any] = {}
    threads = [
        threading.Thread(target=perform, args=(site, address, play, results))
        for address in site["addresses"]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
