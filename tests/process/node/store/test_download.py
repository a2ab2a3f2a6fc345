"""Pulling from a real HTTP server, with the real client library, in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import fork_server
import httpx
import pytest
from cases import each_case
from fork_server import Forked
from waiting import until

from spark_cluster.node.store import download
from spark_cluster.node.store.download import needed
from spark_cluster.node.store.hub_problems import HubProblem
from spark_cluster_lab.hub import Conduct, LabHub, serve
from spark_cluster_lab.hub_files import hub_file

MODEL = "org/model"
PROGRAM = "spark_cluster.node.store.download"
SHARD = 2 << 20
LIMIT_S = 60.0


@dataclass
class Puller:
    """Starts pulls of one model into one cache."""

    hub: LabHub
    folder: Path
    home: Path

    def request(self, **given: Any) -> str:
        asked = {
            "repository": MODEL,
            "revision": "main",
            "cache": str(self.folder / "cache"),
            "ours": str(self.folder / "ours"),
            "endpoint": self.hub.url,
            "room_left": 0,
            "tries": 2,
            **given,
        }
        return json.dumps(asked)

    def start(self, **given: Any) -> Forked:
        process = fork_server.hub_program(PROGRAM, str(self.home))
        with process.stdin:
            process.stdin.write(self.request(**given).encode())
        return process

    def result(self, process: Forked) -> dict[str, Any]:
        out, err = process.communicate(timeout=LIMIT_S)
        return self.said(out, err, process.returncode)

    def said(self, out: str, err: str, status: int | None) -> dict[str, Any]:
        assert out, err
        found = json.loads(out.strip().rpartition("\n")[2])
        assert isinstance(found, dict)
        assert status == 0, err
        return {**found, "output": out}

    def pull(self, **given: Any) -> dict[str, Any]:
        return self.result(self.start(**given))

    @property
    def repository(self) -> Path:
        return self.folder / "cache" / "models--org--model"

    def content(self, commit: str) -> dict[str, bytes]:
        snapshot = self.repository / "snapshots" / commit
        paths = [path for path in snapshot.rglob("*") if path.is_file()]
        return {path.relative_to(snapshot).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the hub library's own files."""
    return tmp_path_factory.mktemp("hub-library")


@pytest.fixture
def puller(tmp_path: Path, home: Path) -> Iterator[Puller]:
    root = tmp_path / "hub" / MODEL
    write(root, b"first")
    with serve(tmp_path / "hub") as hub:
        yield Puller(hub, tmp_path, home)


def write(root: Path, seed: bytes) -> None:
    """Write a model of two shards, a small configuration, and a copy in another format."""
    (root / "nested").mkdir(parents=True)
    for number in (1, 2):
        data = (seed + b" %d " % number).ljust(1024, b"x") * (SHARD // 1024)
        (root / f"model-{number}.safetensors").write_bytes(data)
    (root / "config.json").write_bytes(b'{"seed": "%s"}' % seed)
    (root / "nested" / "code.py").write_bytes(b"# " + seed)
    (root / "pytorch_model.bin").write_bytes(b"the same again")


def expected(root: Path) -> dict[str, bytes]:
    paths = [p for p in root.rglob("*") if p.is_file() and p.suffix != ".bin"]
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in paths}


def test_a_revision_arrives_whole_in_the_standard_layout(puller):
    from huggingface_hub import snapshot_download

    found = puller.pull()
    commit = puller.hub.commit(MODEL)
    assert found["commit"] == commit
    assert puller.content(commit) == expected(puller.hub.root / MODEL)
    assert (puller.repository / "refs" / "main").read_text() == commit
    # The library finds it without asking anyone.
    folder = snapshot_download(MODEL, cache_dir=puller.folder / "cache", local_files_only=True)
    assert Path(folder).name == commit
    manifests = list((puller.folder / "ours" / "manifests").iterdir())
    assert [path.name for path in manifests] == [f"models--org--model@{commit}.json"]


def test_all_files_on_request(puller):
    found = puller.pull(all_files=True)
    assert "pytorch_model.bin" in puller.content(found["commit"])


def test_a_token_stays_with_the_hub_when_it_sends_on_to_a_store(puller):
    puller.hub.conduct[MODEL] = Conduct(private=True, token="hf_secret")
    with serve(puller.hub.root) as store:
        puller.hub.store = store.url
        found = puller.pull(token="hf_secret")
        assert puller.content(found["commit"]) == expected(puller.hub.root / MODEL)
        assert any("/resolve/" in path for path in puller.hub.with_token)
        assert len(store.requests) >= 2
        assert store.with_token == []


def test_a_file_too_large_for_http_comes_by_the_librarys_own_download(puller):
    code = (
        "import sys\nfrom spark_cluster.node.store import download\n"
        f"download.LARGEST_BY_HTTP = {SHARD - 1}\nsys.exit(download.main())\n"
    )
    process = fork_server.hub_library_server(str(puller.home)).start(code)
    with process.stdin:
        process.stdin.write(puller.request().encode())
    found = puller.result(process)
    assert puller.content(found["commit"]) == expected(puller.hub.root / MODEL)
    assert not list((puller.folder / "ours" / "xet").iterdir())


def test_a_pull_that_was_killed_is_resumed(puller):
    puller.hub.conduct[MODEL] = Conduct(bytes_per_s=1 << 18)
    process = puller.start()
    blobs = puller.repository / "blobs"
    until(lambda: sum(p.stat().st_size for p in blobs.glob("*.incomplete")) >= 1 << 18)
    assert process.poll() is None
    process.kill()
    process.communicate(timeout=LIMIT_S)
    before = sum(path.stat().st_size for path in blobs.iterdir())
    puller.hub.conduct[MODEL] = Conduct()
    found = puller.pull()
    assert found["came"] == found["size"] - before  # of what was on the disk nothing came again
    assert puller.hub.sent_of(MODEL) <= found["size"] * 1.02
    assert puller.content(found["commit"]) == expected(puller.hub.root / MODEL)


def test_two_pulls_at_once_fetch_each_byte_once(puller):
    puller.hub.conduct[MODEL] = Conduct(bytes_per_s=4 << 20)
    both = [puller.start(), puller.start()]
    found = [puller.result(process) for process in both]
    assert sorted(one["came"] for one in found) == [0, found[0]["size"]]
    assert puller.hub.sent_of(MODEL) == found[0]["size"]


@each_case(__file__, "hub_refusals.json")
def test_a_refusal_says_what_to_do(case, puller):
    garbage = case.get("garbage")
    puller.hub.conduct[MODEL] = Conduct(**case["conduct"], garbage=garbage and garbage.encode())
    found = puller.pull(**case["given"])
    assert case["says"] in f"{found['error']} {found['hint']}"
    assert "hf_x" not in found["output"]


@each_case(__file__, "survived.json")
def test_what_a_pull_survives(case, puller):
    """Cut connections are resumed, a hub that gives no parts sends the whole again, one that lied
    once about a hash is asked again, and a refusal that passes is waited for."""
    conduct = Conduct(**{**case["conduct"], "wrong": frozenset(case["conduct"].get("wrong", ()))})
    puller.hub.conduct[MODEL] = conduct
    found = puller.pull()
    assert puller.content(found["commit"]) == expected(puller.hub.root / MODEL)
    assert found["came"] == found["size"] + case.get("more", 0)  # what was there is left out of it
    if conduct.cut_after:
        assert puller.hub.spent[MODEL, "cut"] > 1
        assert conduct.no_ranges or puller.hub.sent_of(MODEL) <= found["size"] * 1.02


def test_without_a_network_that_is_said_soon(tmp_path, monkeypatch):
    waited: list[float] = []
    monkeypatch.setattr(download.time, "sleep", waited.append)

    def manifest() -> NoReturn:
        raise httpx.ConnectError("Temporary failure in name resolution")

    hub: Any = SimpleNamespace(manifest=manifest, wait_of=lambda _error: 0)
    wanted = download.DownloadRequest(MODEL, "main", str(tmp_path / "cache"), str(tmp_path))
    with pytest.raises(HubProblem, match="name resolution"):
        download.Download(wanted, hub).run()
    assert waited == [1, 2, 4]


def test_the_body_of_a_refusal_is_not_read(puller):
    puller.hub.conduct[MODEL] = Conduct(status=500, files_only=True, endless=True)
    found = puller.pull(tries=1)
    assert found["error"] == "the hub's answer cannot be used: status 500"


def test_a_token_opens_a_gated_model_and_is_written_nowhere(puller):
    puller.hub.conduct[MODEL] = Conduct(gated=True, token="hf_secret")
    own, pipe = {"HF_HOME": str(puller.folder / "home"), "HF_HUB_OFFLINE": "0"}, subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", f"import {PROGRAM} as one; one.main()"],
        stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=os.environ | own,
    )  # fmt: skip
    process.stdin.write(puller.request(token="hf_secret"))
    process.stdin.flush()
    shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    shown += Path(f"/proc/{process.pid}/environ").read_bytes()
    assert b"hf_secret" not in shown
    found = puller.said(*process.communicate(timeout=LIMIT_S), process.returncode)
    assert "hf_secret" not in found["output"]
    files = [path for path in puller.folder.rglob("*") if path.is_file()]
    assert not [path for path in files if b"hf_secret" in path.read_bytes()]


def test_a_token_that_expires_in_the_middle(puller):
    for number in range(20):
        (puller.hub.root / MODEL / f"part-{number}.json").write_bytes(b"%d" % number * 200_000)
    puller.hub.conduct[MODEL] = Conduct(
        private=True, token="hf_old", expires_after=4_000_000, bytes_per_s=64 << 20
    )
    found = puller.pull(token="hf_old")
    assert "expired" in found["error"]
    before = puller.hub.sent_of(MODEL)
    puller.hub.conduct[MODEL] = Conduct(private=True, token="hf_new")
    again = puller.pull(token="hf_new")
    assert puller.content(again["commit"]) == expected(puller.hub.root / MODEL)
    assert before + again["came"] <= again["size"] * 1.02


@pytest.mark.parametrize("name", ["model-1.safetensors", "config.json"])
def test_a_hub_that_lies_about_a_hash(name, puller):
    puller.hub.conduct[MODEL] = Conduct(wrong=frozenset({name}))
    found = puller.pull()
    assert name in found["error"]
    commit = puller.hub.commit(MODEL)
    assert name not in puller.content(commit)
    assert not (puller.repository / "refs" / "main").exists()


def test_a_branch_that_moves(puller):
    old = puller.pull()["commit"]
    write(puller.folder / "second", b"second")
    puller.hub.repositories.move(MODEL, "main", puller.folder / "second")
    new = puller.pull()["commit"]
    assert new != old
    assert puller.content(new) == expected(puller.folder / "second")
    assert (puller.repository / "refs" / "main").read_text() == new
    again = puller.pull(revision=old)
    assert (again["came"], again["commit"]) == (0, old)
    assert (puller.repository / "refs" / "main").read_text() == new


def test_a_part_that_another_tool_left_wrong_is_fetched_again(puller):
    file = hub_file(puller.hub.root / MODEL / "model-1.safetensors")
    half = puller.repository / "blobs" / f"{file.hash}.incomplete"
    half.parent.mkdir(parents=True)
    half.write_bytes(bytes(SHARD // 2))
    found = puller.pull()
    assert puller.content(found["commit"]) == expected(puller.hub.root / MODEL)


def test_too_little_space_is_said_before_the_first_byte(puller):
    found = puller.pull(room_left=1 << 60)
    assert "are free" in found["error"]
    assert puller.hub.sent_of(MODEL) == 0


def test_a_server_that_cannot_be_reached(puller):
    found = puller.pull(endpoint="http://127.0.0.1:9")
    assert "HTTPS_PROXY" in found["hint"]


# -- which files are fetched: each weight in one format -------------------------------------------


@each_case(__file__, "formats.json")
def test_each_weight_is_fetched_in_one_format(case):
    """A repository without safetensors at its top is taken whole."""
    assert needed([*case["fetched"], *case["again"]]) == case["fetched"]
