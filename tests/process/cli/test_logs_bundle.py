"""`logs --bundle` on real agents with a stand-in for docker: what is in it, and no secret."""

import json
import tarfile
from pathlib import Path

import pytest
from factories import put
from fake_programs import missing

from spark_cluster.doctor import bundle_archive
from spark_cluster.doctor.bundle_archive import BundleArchive, without_env_values
from spark_cluster.errors import Failed

KEY = "the-endpoints-own-key"
TOKEN = "hf_" + "a" * 30
INVENTORY = """\
nodes:
  spark1: {address: 10.0.0.1, roles: [head]}
  lost: {address: 10.0.0.2}
serve: {api_key: {env: MY_KEY}}
"""
DOCKER = f"""\
#!/bin/sh
case "$1 $2" in
"logs "*) echo "2026-11-20T14:12:19.5Z ValueError: no room for --api-key {KEY} and {TOKEN}" ;;
"container inspect") cat <<'END'
[{{"State": {{"Status": "exited"}}, "Config": {{"Env": ["HF_TOKEN={TOKEN}", "A=plain-value"]}}}}]
END
;;
*) exit 1 ;;
esac
"""


@pytest.fixture
def nodes(project: Path, piped_nodes, monkeypatch) -> Path:
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setenv("COLUMNS", "200")
    put(project / "inventory.yaml", INVENTORY)
    for name in ("systemctl", "journalctl", "ip", "nvidia-smi"):
        piped_nodes["spark1"].programs[name] = missing
    put(project / "spark1/usr/local/bin/docker", DOCKER, 0o755)
    put(project / "state/spark-cluster/runs/20261120-1.jsonl", f'{{"event": "x", "k": "{KEY}"}}\n')
    return project


def texts(path: Path) -> dict[str, str]:
    """The texts of an archive by their names, without its folder."""
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            folder, _, name = member.name.partition("/")
            assert path.name.startswith(folder) or path.name == "mine.tar.gz"
            assert (member.isfile(), member.mode) == (True, 0o600)
            content = archive.extractfile(member)
            found[name] = content.read().decode()
    return found


def test_all_that_a_report_needs_is_in_it_and_no_secret(run, nodes):
    status, out, err = run("logs", "--bundle", "mine.tar.gz", "--json")
    assert status == 0, err
    found = texts(nodes / "mine.tar.gz")
    assert {
        "CONTENTS.txt",
        "versions.json",
        "doctor.json",
        "status.json",
        "nodes/spark1/facts.json",
        "nodes/spark1/inspect.json",
        "nodes/spark1/spark-vllm.log",
        "nodes/lost/error.json",
        "runs/20261120-1.jsonl",
    } <= set(found)
    whole = "".join(found.values())
    for secret in (KEY, TOKEN, "plain-value"):
        assert secret not in whole
    assert "ValueError: no room" in found["nodes/spark1/spark-vllm.log"]
    [container] = json.loads(found["nodes/spark1/inspect.json"])
    assert container["Config"]["Env"] == ["HF_TOKEN", "A"]
    assert json.loads(found["nodes/lost/error.json"])["message"] == "no answer"
    assert json.loads(found["status.json"])["state"]
    document = json.loads(out)
    listed = {entry["name"] for entry in document["contents"]}
    assert listed == set(found) - {"CONTENTS.txt"}
    assert all(name in found["CONTENTS.txt"] for name in listed)


def test_its_name_is_made_and_only_its_user_reads_it(run, nodes):
    status, out, _ = run("logs", "--bundle")
    assert status == 0
    [path] = nodes.glob("spark-cluster-*.tar.gz")
    assert path.stat().st_mode & 0o777 == 0o600
    assert str(path) in out
    assert "look through it" in out
    texts(path)


def test_a_file_that_is_there_is_not_overwritten(run, nodes):
    put(nodes / "mine.tar.gz", "mine")
    status, _, err = run("logs", "--bundle", "mine.tar.gz")
    assert (status, "there is a file of this name" in err) == (1, True)
    assert (nodes / "mine.tar.gz").read_text() == "mine"


# -- limits --------------------------------------------------------------------------------------


def test_a_long_text_keeps_its_ends(monkeypatch, tmp_path):
    monkeypatch.setattr(bundle_archive, "LARGEST", 100)
    archive = BundleArchive("x")
    archive.add("log", "begin" + "." * 1000 + "end")
    archive.add("empty", "\n")
    archive.write(tmp_path / "mine.tar.gz")
    [entry] = archive.entries
    assert (entry.name, entry.cut) == ("log", True)
    found = texts(tmp_path / "mine.tar.gz")
    assert found["log"].startswith("begin")
    assert found["log"].endswith("end")
    assert "[... 908 B left out" in found["log"]
    assert "its middle is cut" in found["CONTENTS.txt"]


def test_a_full_archive_says_what_is_not_in_it(monkeypatch, tmp_path):
    monkeypatch.setattr(bundle_archive, "MOST", 10)
    archive = BundleArchive("x")
    archive.add("first", "12345678")
    archive.add("second", "12345678")
    archive.add("third", "1")
    archive.write(tmp_path / "mine.tar.gz")
    assert (archive.left_out, [e.name for e in archive.entries]) == (["second"], ["first", "third"])
    assert "second  (left out" in texts(tmp_path / "mine.tar.gz")["CONTENTS.txt"]


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(Failed, match="cannot be written"):
        BundleArchive("x").write(tmp_path / "none" / "mine.tar.gz")


@pytest.mark.parametrize("text", ["", "{", "Error: no such container", "{}", '"x"', "[" * 100_000])
def test_an_inspection_that_is_none_is_left_out(text):
    assert without_env_values(text) == ""


def test_variables_of_any_form_lose_their_values():
    text = '[{"Config": {"Env": ["A=1", "B", 3]}}, {"Config": {"Env": "A=1"}}, 4]\nError: none'
    first, second, third = json.loads(without_env_values(text))
    assert first["Config"]["Env"] == ["A", "B", "3"]
    assert second["Config"]["Env"] == []
    assert third == 4
