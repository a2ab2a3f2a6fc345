"""The commit of a project, by a real git: nothing that its repository names is run for it."""

import subprocess
from pathlib import Path

import pytest
from factories import put

from spark_cluster.cli.bench_measure import commit_of

PROGRAMS = {
    "monitor": "[core]\nfsmonitor = touch {ran}\n",
    "filter": '[filter "x"]\nclean = touch {ran}; cat\n',
    "included": "[include]\npath = other\n",
    "fetch": "[core]\nrepositoryformatversion = 1\nsshCommand = touch {ran}\n"
    "[extensions]\npartialClone = origin\n"
    '[remote "origin"]\nurl = ssh://x/y\npromisor = true\nuploadpack = touch {ran}\n',
    "process": '[filter "x"]\nprocess = touch {ran}\nrequired = true\n',
}
"""Settings of a repository with a program in them."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "theirs"
    put(made / "suites/a.yaml", "a: 1\n")
    put(made / ".gitattributes", "*.yaml filter=x\n")
    user = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    for words in (("init", "-q"), ("add", "."), (*user, "commit", "-qm", "a")):
        subprocess.run(["git", "-C", made, *words], check=True)
    return made


def test_whether_it_was_changed(folder):
    commit = commit_of(folder)
    assert len(commit) >= 7
    put(folder / "suites/a.yaml", "a: 2\n")
    assert commit_of(folder) == f"{commit} (changed)"
    assert commit_of(folder.parent) == ""


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_folder_that_somebody_shares_runs_nothing(folder, name):
    commit, ran = commit_of(folder), folder.parent / "ran"
    with (folder / ".git/config").open("a") as config:
        config.write(PROGRAMS[name].format(ran=ran))
    put(folder / ".git/other", PROGRAMS["filter"].format(ran=ran))
    put(folder / ".git/hooks/post-index-change", f"#!/bin/sh\ntouch {ran}\n", 0o755)
    put(folder / "suites/a.yaml", "b: 2\n")
    if name == "fetch":
        for path in (folder / ".git/objects").glob("??/*"):
            path.unlink()
    found = commit_of(folder)
    assert not ran.exists()
    assert found.startswith(commit) or name == "fetch"
