"""Kinds of resources on a scratch node: each case of a file `kinds/KIND.json` beside a test tells
what is there, what is declared, and what becomes of it.

Keys of a case:
    accounts: the node has users and groups of its own.
    there, state: files, and the state of the node's fake commands, before; null is none of it.
    programs: programs of the node by name, as texts.
    reached: the laptop reaches the node anew, whatever becomes of its network.
    first: resources that an earlier run has applied; `drift` are files and states since then.
    given: resources that stand before it in the same document.
    is: the resource.
    steps: in place of one application several, one after the other: each has the keys from `there`
        on, and the fields of `is` that are other than the case's.
    verdict: of its application, `change` if it is not named; `check` is that of check mode; `all`
        are those of all resources of the document.
    says: texts of the error; of an unknown verdict, the reason or texts of it.
    foretold, reason: texts of the reason that check mode gives, and of that of the application.
    progress, notes: texts of what it told the user while it was at work, and for the end.
    output: of a command that only reads.
    diff: texts of the difference that check mode shows.
    changes: as the result tells them.
    hidden: texts that stand nowhere in what is told of it, nor in the journal.
    then, leaves: files, and parts of the fakes' state, afterwards.
    calls: words, or a list of them, of each command that changed something.
    uncalled: words of commands that were not run.
    again: the verdict of a second application, `ok` if it is not named; null where none is tried.
    asks: how many commands tell afterwards that nothing is to be done.

A file is its text, null where there is none, or an object with `text`, `mode`, `link`, `pipe`; a
name that ends with a slash is a folder, which has `names` afterwards. `{"ends": TEXT}` stands for
any text that ends so, `$root` for the node's folder, `$machine` for this machine's architecture,
`$other` for another one.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import cases, holds
from factories import put
from resource_samples import MACHINE

from spark_cluster.node.host import Host
from spark_cluster.node.values import Secret
from spark_cluster.resources import Resource
from spark_cluster.resources.base import resource_class

Case = dict[str, Any]

OTHER = "arm64" if MACHINE == "amd64" else "amd64"
KEYS = {
    "accounts", "there", "state", "programs", "reached", "first", "drift", "given", "is", "steps",
    "verdict", "check", "all", "says", "foretold", "reason", "progress", "notes", "output",
    "changes", "diff", "hidden", "then", "leaves", "calls", "uncalled", "again", "asks",
}  # fmt: skip
FAKES = ("systemd", "apt", "kernel", "docker", "nft", "network")


def kind_cases(test: str) -> list[Any]:
    """Return the cases of the folder `kinds` beside a test, for `parametrize`."""
    return list(_all_cases(Path(test).with_name("kinds"), test))


def _all_cases(folder: Path, test: str) -> Iterator[Any]:
    for path in sorted(folder.glob("*.json")):
        found = cases(test, f"kinds/{path.name}", machine=MACHINE, other=OTHER)
        common = found.pop("common", {})
        for name, case in found.items():
            for one in (case, *case.get("steps", [])):
                assert one.keys() <= KEYS, f"{path.stem}: {name}: {one.keys() - KEYS} are not known"
            both = {key: {**common.get(key, {}), **case.get(key, {})} for key in ("there", "state")}
            declared = {"type": path.stem, **case["is"]}
            whole = {**common, **case, **both, "is": declared}
            yield pytest.param(whole, id=f"{path.stem}: {name}")


def become(node: Any, case: Case) -> None:
    """Apply a case to a node, and look whether it becomes what the case tells."""
    case = _on(node, case)
    node.install(*(fake for fake in FAKES if fake in case["state"]))
    for name, text in case.get("programs", {}).items():
        put(node.bin / name, text, 0o755)
    _bring_about(node, case)
    for document in case.get("first", []):
        assert node.apply(_made(document), host=_host(node, True)).verdict == "change"
    _bring_about(node, case.get("drift", {}))
    for step in case.get("steps", []):
        _bring_about(node, step)
        _apply(node, {**case, **step, "is": {**case["is"], **step.get("is", {})}})
    if "steps" not in case:
        _apply(node, case)


def _apply(node: Any, case: Case) -> None:
    wanted = [*map(_made, case.get("given", [])), _made(case["is"])]
    verdict, says = case.get("verdict", "change"), case.get("says", [])
    checked = node.check(*wanted)
    if verdict == "unknown":
        assert checked.verdict == verdict, checked.error
        assert (
            checked.reason == says if isinstance(says, str) else not _missing(says, checked.reason)
        )
        return
    assert checked.verdict == case.get("check", verdict), checked.error
    assert _missing(case.get("foretold", []), checked.reason) == [], checked.reason
    assert _missing(case.get("diff", []), checked.diff) == [], checked.diff
    before = len(_told(node))
    results = node.results(*wanted, host=_host(node, case.get("reached")))
    result = results[-1]
    assert result.verdict == verdict, result.error
    verdicts = [one.verdict for one in results]
    assert verdicts == case.get("all", verdicts)
    assert _missing(says, result.error) == [], result.error
    assert _missing(case.get("reason", []), result.reason) == [], result.reason
    assert _missing(case.get("progress", []), "\n".join(node.progress)) == [], node.progress
    assert _missing(case.get("notes", []), "\n".join(node.notes)) == [], node.notes
    assert result.event.get("output") == case.get("output", result.event.get("output"))
    assert result.event.get("changes") == case.get("changes", result.event.get("changes"))
    calls = _told(node)[before:]
    assert len(calls) == len(case.get("calls", calls)), calls
    for call, words in zip(calls, case.get("calls", calls), strict=True):
        assert all(word in call for word in ([words] if isinstance(words, str) else words))
    assert not [words for words in case.get("uncalled", []) for call in calls if words in call]
    for name, content in case.get("then", {}).items():
        expected = content if isinstance(content, dict) else {"text": content}
        assert holds(_looks(node, name), expected), name
    for fake, expected in case.get("leaves", {}).items():
        with node.state(fake) as state:
            assert holds(state, expected), state
    journal = node.path("/var/lib/spark-cluster/journal").rglob("*")
    kept = b"".join(path.read_bytes() for path in journal if path.is_file())
    for text in case.get("hidden", []):
        assert text not in str((checked.event, result.event, node.notes, calls))
        assert text.encode() not in kept
    again = case.get("again", None if verdict == "failed" else "ok")
    if again is not None:
        before = _asked(node)
        assert (node.apply(*wanted).verdict, node.check(*wanted).verdict) == (again, again)
        assert _asked(node) - before == 2 * case.get("asks", (_asked(node) - before) / 2)


def _host(node: Any, reached: bool | None) -> Host:
    host: Host = node.host()
    if reached:  # the laptop leaves the proof that it is asked for
        host.verify_login = node.put
    return host


def _on(node: Any, value: Any) -> Any:
    """Return a value of a case with the node's folder in it."""
    if isinstance(value, Secret):
        return Secret(value.replace("$root", str(node.root)))
    if isinstance(value, str):
        return value.replace("$root", str(node.root))
    if isinstance(value, dict):
        return {name: _on(node, inner) for name, inner in value.items()}
    return [_on(node, inner) for inner in value] if isinstance(value, list) else value


def _made(document: Case) -> Resource:
    fields = {name: value for name, value in document.items() if name != "type"}
    return resource_class(document["type"])(**fields)


def _place(node: Any, name: str, content: Any) -> None:
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


def _looks(node: Any, name: str) -> Case:
    """Return what is at a path, as a case writes it; its mode too."""
    path = node.path(name)
    if path.is_symlink():
        return {"link": os.readlink(path)}
    if not path.exists():
        return {"text": None}
    names = {"names": sorted(os.listdir(path))} if path.is_dir() else {"text": path.read_text()}
    return {**names, "mode": f"{path.stat().st_mode & 0o7777:04o}"}


def _bring_about(node: Any, what: Case) -> None:
    for name, content in what.get("there", {}).items():
        _place(node, name, content)
    for fake, told in what.get("state", {}).items():
        with node.state(fake) as state:
            _merge(state, told)


def _merge(known: Case, told: Case) -> None:
    for name, value in told.items():
        if isinstance(value, dict) and isinstance(known.get(name), dict):
            _merge(known[name], value)
        elif value is None:
            known.pop(name, None)
        else:
            known[name] = value


def _missing(texts: list[str], told: str) -> list[str]:
    return [text for text in texts if text not in told]


def _told(node: Any) -> list[str]:
    """The words of what was changed by commands."""
    return [
        " ".join(call)
        for fake in FAKES
        for call in node.changing_calls(fake)
        if "showhold" not in call
    ]


def _asked(node: Any) -> int:
    """Return the number of commands that were run."""
    return sum(len(node.calls(fake)) for fake in FAKES)
