"""Kinds of resources on a scratch node: each case of kinds/KIND.json tells what is there, what is
declared, and what becomes of it.

Keys of a case:
    accounts: the node has users and groups of its own.
    there, state: files, and the state of the node's fake commands, before.
    first: resources that an earlier run has applied; `drift` are files and states since then.
    given: resources that stand before it in the same document.
    is: the resource.
    verdict: of its application, `change` if it is not named; `check` is that of check mode.
    says: texts of the error; of an unknown verdict, the reason.
    diff: texts of the difference that check mode shows.
    changes: as the result tells them.
    then, leaves: files, and parts of the fakes' state, afterwards.
    calls: words, or a list of them, of each command that changed something.
    asks: how many commands tell afterwards that nothing is to be done.

A file is its text, null where there is none, or an object with `text`, `mode`, `link`, `pipe`; a
name that ends with a slash is a folder. `{"ends": TEXT}` stands for any text that ends so,
`$machine` for this machine's architecture, `$other` for another one.
"""

import os
from pathlib import Path

import pytest
from cases import cases
from resource_samples import MACHINE

from spark_cluster.resources import package, service, unit
from spark_cluster.resources.base import resource_class

OTHER = "arm64" if MACHINE == "amd64" else "amd64"
KEYS = {
    "accounts", "there", "state", "first", "drift", "given", "is", "verdict", "check", "says",
    "changes", "diff", "then", "leaves", "calls", "asks",
}  # fmt: skip
FAKES = ("systemd", "apt", "kernel", "docker", "nft")


def all_cases():
    for path in sorted(Path(__file__).with_name("kinds").glob("*.json")):
        found = cases(__file__, f"kinds/{path.stem}.json", machine=MACHINE, other=OTHER)
        common = found.pop("common", {})
        for name, case in found.items():
            assert case.keys() <= KEYS, f"{path.stem}: {name}: {case.keys() - KEYS} are not known"
            both = {key: {**common.get(key, {}), **case.get(key, {})} for key in ("there", "state")}
            declared = {"type": path.stem, **case["is"]}
            whole = {**common, **case, **both, "is": declared}
            yield pytest.param(whole, id=f"{path.stem}: {name}")


def made(document):
    fields = {name: value for name, value in document.items() if name != "type"}
    return resource_class(document["type"])(**fields)


def place(node, name, content):
    path = node.path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = content if isinstance(content, dict) else {"text": content}
    if name.endswith("/"):
        path.mkdir(exist_ok=True)
    elif about.get("pipe"):
        os.mkfifo(path)
    elif "link" in about:
        path.symlink_to(about["link"])
    elif about["text"] is None:
        path.rmdir() if path.is_dir() else path.unlink()
    else:
        path.write_text(about["text"])
    if "mode" in about:
        path.chmod(int(about["mode"], 8))


def looks(node, name):
    """Return what is at a path, as a case writes it; its mode too."""
    path = node.path(name)
    if path.is_symlink():
        return {"link": os.readlink(path)}
    if not path.exists():
        return {"text": None}
    text = {} if path.is_dir() else {"text": path.read_text()}
    return {**text, "mode": f"{path.stat().st_mode & 0o7777:04o}"}


def bring_about(node, what):
    for name, content in what.get("there", {}).items():
        place(node, name, content)
    for fake, told in what.get("state", {}).items():
        with node.state(fake) as state:
            state.update(told)


def holds(found, expected):
    """Return whether all that is expected is in what was found."""
    if not isinstance(expected, dict):
        return found == expected
    if expected.keys() == {"ends"}:
        return found.endswith(expected["ends"])
    return all(name in found and holds(found[name], value) for name, value in expected.items())


def told(node):
    """The words of what was changed by commands."""
    return [
        " ".join(call)
        for fake in FAKES
        for call in node.changing_calls(fake)
        if "showhold" not in call
    ]


def asked(node):
    """Return the number of commands that were run."""
    return sum(len(node.calls(fake)) for fake in FAKES)


@pytest.fixture
def at_once(monkeypatch):
    """Nothing is waited for."""
    monkeypatch.setattr(package.time, "sleep", lambda _: None)
    monkeypatch.setattr(service, "_STAYS_S", 0.0)
    monkeypatch.setattr(unit, "STAYS_S", 0.0)
    monkeypatch.setattr(unit, "LOOK_EVERY_S", 0.0)


@pytest.mark.parametrize("case", list(all_cases()))
def test_what_becomes_of_it(case, at_once, request):
    node = request.getfixturevalue("accounts" if case.get("accounts") else "node")
    node.install(*(fake for fake in FAKES if fake in case["state"]))
    bring_about(node, case)
    for document in case.get("first", []):
        assert node.apply(made(document)).verdict == "change"
    bring_about(node, case.get("drift", {}))
    wanted = [*map(made, case.get("given", [])), made(case["is"])]
    verdict, says = case.get("verdict", "change"), case.get("says", [])
    checked = node.check(*wanted)
    if verdict == "unknown":
        assert (checked.verdict, checked.reason) == (verdict, says)
        return
    assert checked.verdict == case.get("check", verdict), checked.error
    assert [text for text in case.get("diff", []) if text not in checked.diff] == [], checked.diff
    before = len(told(node))
    result = node.apply(*wanted)
    assert result.verdict == verdict, result.error
    assert [text for text in says if text not in result.error] == [], result.error
    assert result.event.get("changes") == case.get("changes", result.event.get("changes"))
    calls = told(node)[before:]
    assert len(calls) == len(case.get("calls", calls))
    for call, words in zip(calls, case.get("calls", calls), strict=True):
        assert all(word in call for word in ([words] if isinstance(words, str) else words))
    for name, content in case.get("then", {}).items():
        expected = content if isinstance(content, dict) else {"text": content}
        assert holds(looks(node, name), expected), name
    for fake, expected in case.get("leaves", {}).items():
        with node.state(fake) as state:
            assert holds(state, expected), state
    if verdict != "failed":
        before = asked(node)
        node.must_be_ok(*wanted)
        assert asked(node) - before == 2 * case.get("asks", (asked(node) - before) / 2)
