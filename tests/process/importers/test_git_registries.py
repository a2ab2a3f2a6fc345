"""Registries that are git repositories: what is taken of them, and of hostile ones what is not."""

import json
import os
import time
from pathlib import Path

import pytest
from cases import each_row
from factories import put
from registry_samples import name_registry, ours, repository, sparkrun

from spark_cluster.config import registries
from spark_cluster.config.project import Project
from spark_cluster.config.recipe_settings import must_be_allowed
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import Failed, InvalidFile, Refused, UsageError
from spark_cluster.importers import fetching, snapshot
from spark_cluster.importers.fetching import Update, look, take

ESCAPE = "\x1b"


def taken(project: Path, *, agree: bool = True) -> Update:
    (registry,) = registries.registries(project)
    found = look(registry, project)
    return take(found, project) if agree and not found.in_use else found


def listed(project: Path) -> dict[str, registries.Listed]:
    (registry,) = registries.registries(project)
    return {one.name: one for one in registries.current(registry, project).recipes}


def test_a_recipe_is_used_by_reference_without_the_repository(theirs, project):
    commit = theirs.commit(recipes__one=ours("one"))
    assert taken(project).changes.added == ("one",)
    theirs.folder.rename(theirs.folder.with_name("gone"))
    recipe = load_recipe("@theirs/one", Project(project))
    assert (recipe.name, recipe.model.name) == ("one", "org/one")
    assert registries.pins(project) == {f"{theirs.url} main": commit}


def test_recipes_of_another_tool_are_converted_when_they_are_taken(theirs, project):
    theirs.commit(a__good=sparkrun(), a__odd=sparkrun("x", -1) + "runtime: llama-cpp\n")
    theirs.commit(a__bad="recipe_version: '2'\nmodel: 3\ncommand: ls\n")
    name_registry(project, theirs.url, "sparkrun")
    taken(project)
    recipe = load_recipe("@theirs/good", Project(project))
    assert recipe.engine_args["max-model-len"] == 4096
    assert theirs.url in recipe.sources[0]
    assert listed(project)["bad"].error
    with pytest.raises(InvalidFile, match="no recipe for this program"):
        load_recipe("@theirs/bad", Project(project))


def test_what_moved_is_named_and_taken_only_when_agreed(theirs, project):
    theirs.commit(same=ours("same"), old=ours("old"), edited=ours("edited"))
    first = taken(project).found.revision
    second = theirs.commit(old=None, edited=ours("edited", "anew"), new=ours("new"))
    found = taken(project, agree=False)
    assert (found.taken, found.found.revision, found.in_use) == (first, second, False)
    assert (found.changes.added, found.changes.changed) == (("new",), ("edited",))
    assert found.changes.removed == ("old",)
    assert not found.rewritten
    assert "old" in listed(project), "what was taken before remains in use"
    assert taken(project).in_use
    assert "old" not in listed(project)
    assert not taken(project).changes, "nothing has moved since"


def test_what_is_pinned_is_fetched_again_where_the_cache_lacks_it(
    theirs, project, monkeypatch, tmp_path
):
    """Another machine, or an emptied cache: it need not agree to what the branch has now."""
    first = theirs.commit(old=ours("old"))
    taken(project)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another cache"))
    assert taken(project, agree=False).in_use, "it has not moved"
    assert list(listed(project)) == ["old"]
    theirs.commit(old=None, new=ours("new"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a third one"))
    found = taken(project, agree=False)
    assert (found.taken, found.in_use) == (first, False)
    assert (found.changes.added, found.changes.removed) == (("new",), ("old",))
    assert list(listed(project)) == ["old"]
    assert registries.pins(project) == {f"{theirs.url} main": first}


def test_a_commit_in_the_file_never_moves(theirs, project):
    commit = theirs.commit(one=ours("one"))
    theirs.commit(one=ours("one", "newer"), two=ours("two"))
    name_registry(project, theirs.url, commit=commit)
    assert taken(project, agree=False).in_use
    assert list(listed(project)) == ["one"]
    theirs.folder.rename(theirs.folder.with_name("gone"))
    assert taken(project, agree=False).found.revision == commit, "it is in the cache"


@pytest.mark.parametrize("more", [{"commit": "0" * 40}, {"branch": "nosuch"}])
def test_a_commit_or_branch_that_does_not_exist(theirs, project, more):
    theirs.commit(one=ours("one"))
    name_registry(project, theirs.url, **{k: f"'{v}'" for k, v in more.items()})
    with pytest.raises(UsageError, match=r"no such commit or branch: \w+"):
        taken(project)


def test_links_large_files_and_odd_names_are_not_taken(theirs, project, tmp_path):
    secret = put(tmp_path / "secret.yaml", ours("secret"))
    theirs.commit_files(
        {
            "good": ours("good"),
            "large.yaml": "#" * (snapshot.LARGEST_FILE + 1),
            f"red{ESCAPE}[31m.yaml": ours("red"),
            "new\nline.yaml": ours("line"),
            ".hidden/it.yaml": ours("it"),
            "README.md": "text",
        }
    )
    (theirs.folder / "link.yaml").symlink_to(secret)
    (theirs.folder / "up.yaml").symlink_to("../secret.yaml")
    theirs.git("add", "--all")
    theirs.git("commit", "--quiet", "--message=links")
    found = taken(project)
    assert list(listed(project)) == ["good"]
    skipped = "\n".join(found.found.skipped)
    for name in ("link.yaml", "up.yaml", "large.yaml", "red"):
        assert name in skipped
    cached = [path for path in registries.cache_folder().rglob("*") if path.is_symlink()]
    assert cached == []


def test_a_submodule_is_not_followed(theirs, project, tmp_path):
    inner = repository(tmp_path / "inner")
    inner.commit(inside=ours("inside"))
    theirs.commit(one=ours("one"))
    theirs.git(
        "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", inner.url, "x.yaml"
    )
    theirs.git("commit", "--quiet", "--message=submodule")
    found = taken(project)
    assert list(listed(project)) == ["one"]
    assert "x.yaml" in "".join(found.found.skipped)


def test_nothing_of_the_repository_is_run(theirs, project, tmp_path, monkeypatch):
    mark = tmp_path / "ran"
    hooks = tmp_path / "hooks"
    for hook in ("post-checkout", "reference-transaction", "post-merge"):
        put(hooks / hook, f"#!/bin/sh\ntouch {mark}\n", 0o755)
    put(
        tmp_path / "home/.gitconfig",
        f'[core]\n  hooksPath = {hooks}\n[filter "evil"]\n  smudge = touch {mark} && cat\n',
    )
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    theirs.commit_files(
        {
            "one": ours("one"),
            ".gitattributes": "*.yaml filter=evil export-ignore\n",
            "run.sh": f"touch {mark}\n",
        }
    )
    mark.unlink(missing_ok=True)  # the commit above was the test's own
    taken(project)
    assert list(listed(project)) == ["one"]
    assert not mark.exists()


def test_files_of_the_same_name_get_the_names_of_their_folders(theirs, project):
    theirs.commit_files(
        {
            "a/same.yaml": ours("same"),
            "b/same.yaml": ours("same", "another"),
            "B/SAME.yaml": ours("SAME"),
            "b/alone.yaml": ours("alone"),
        }
    )
    found = taken(project)
    names = set(listed(project))
    assert {"a-same", "alone"} < names
    assert len(names & {"b-same", "B-SAME", "SAME"}) == 1, "one of the two that differ by case"
    assert "but for its case" in "".join(found.found.skipped)
    assert load_recipe("@theirs/a-same", Project(project)).name == "a-same"


def test_too_many_files_are_an_error(theirs, project, monkeypatch):
    monkeypatch.setattr(snapshot, "MOST_FILES", 2)
    theirs.commit(one=ours("one"), two=ours("two"), three=ours("three"))
    with pytest.raises(Failed, match="more than 2 recipes"):
        taken(project)
    theirs.commit(sub__four=ours("four"))
    name_registry(project, theirs.url, folders="[sub]")
    taken(project)
    assert list(listed(project)) == ["four"]


def test_a_repository_that_is_too_large_is_given_up(theirs, project, monkeypatch):
    theirs.commit_files({"one": ours("one"), "data.bin": os.urandom(1 << 20)})
    monkeypatch.setattr(fetching, "LARGEST_PACK", 64 << 10)
    with pytest.raises(Failed, match="larger than"):
        taken(project)
    assert registries.pins(project) == {}


def test_a_tree_that_lists_its_own_content_over_and_over_is_given_up(theirs, project, monkeypatch):
    theirs.commit_files({"one": ours("one")} | {f"{n}/{n}.txt": "" for n in range(40)})
    monkeypatch.setattr(fetching, "MOST_LISTED", 40)
    with pytest.raises(Failed, match="lists more files"):
        taken(project)
    assert registries.pins(project) == {}


def test_a_server_that_hangs_is_given_up(project, tmp_path, monkeypatch):
    hanging = put(tmp_path / "ssh", "#!/bin/sh\nsleep 600\n", 0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(hanging))
    monkeypatch.setenv("GIT_SSH_VARIANT", "simple")
    monkeypatch.setattr(fetching, "TIMEOUT_S", 1.0)
    name_registry(project, "ssh://git@registry.example/recipes")
    began = time.monotonic()
    with pytest.raises(Failed, match="not fetched within"):
        taken(project)
    assert time.monotonic() - began < 120


def test_no_configuration_leads_git_to_another_protocol(project, tmp_path, monkeypatch):
    """Over plain HTTP anyone on the way could give another repository."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    lines = (
        '[url "http://127.0.0.1:1/"]',
        "insteadOf = https://recipes.invalid/",
        "[protocol]",
        "allow = always",
    )
    put(tmp_path / "home/.gitconfig", "\n".join(lines))
    name_registry(project, "https://recipes.invalid/one.git")
    with pytest.raises(Failed, match="transport 'http' not allowed"):
        taken(project)


def test_without_git_it_says_so(theirs, project, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="git is not installed"):
        taken(project)


@each_row(__file__, "git_registries.toml", "addresses_that_are_refused")
def test_addresses_that_are_refused(project, url):
    name_registry(project, url)
    with pytest.raises(InvalidFile) as caught:
        registries.registries(project)
    assert "registries.yaml:" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_list_of_registries_that_others_can_write_is_not_used(theirs, project):
    (project / "registries.yaml").chmod(0o666)
    with pytest.raises(Refused, match=r"registries\.yaml is not used"):
        registries.registries(project)


def test_a_recipe_of_a_registry_has_no_file_of_the_project(theirs, project):
    put(project / "private.py", "secret")
    patch = f"patches: [{{file: {project}/private.py, origin: laptop, target: /opt/x, why: w}}]\n"
    theirs.commit(one=ours("one") + patch)
    taken(project)
    with pytest.raises(Refused, match=r"private\.py"):
        must_be_allowed(load_recipe("@theirs/one", Project(project)))


def test_a_recipe_of_a_registry_gets_no_variable_unasked(theirs, project, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    theirs.commit(one=ours("one") + "env: {K: {env: MY_KEY}}\n")
    taken(project)
    with pytest.raises(Refused, match="MY_KEY"):
        must_be_allowed(load_recipe("@theirs/one", Project(project)))


@each_row(__file__, "git_registries.toml", "references_that_lead_nowhere")
def test_references_that_lead_nowhere(theirs, project, reference, message):
    theirs.commit(one=ours("one"))
    taken(project)
    with pytest.raises(UsageError, match=message):
        load_recipe(reference, Project(project))


def test_a_registry_that_was_never_fetched_says_how(theirs, project):
    with pytest.raises(UsageError) as caught:
        load_recipe("@theirs/one", Project(project))
    assert caught.value.hint == "spark-cluster recipes update theirs"


def test_a_damaged_cache_is_said_and_repaired_by_an_update(theirs, project):
    theirs.commit(one=ours("one"))
    found = taken(project)
    (registry,) = registries.registries(project)
    folder = registries.snapshot_folder(registry, found.found.revision)
    put(folder / "index.json", "{")
    with pytest.raises(InvalidFile, match="not JSON"):
        load_recipe("@theirs/one", Project(project))
    put(folder / "index.json", '{"recipes": 1}')
    with pytest.raises(InvalidFile) as caught:
        load_recipe("@theirs/one", Project(project))
    assert "recipes update theirs" in str(caught.value)
    taken(project)
    assert load_recipe("@theirs/one", Project(project)).name == "one"


def test_an_older_conversion_is_made_anew(theirs, project, monkeypatch):
    theirs.commit(one=sparkrun())
    name_registry(project, theirs.url, "sparkrun")
    monkeypatch.setattr("spark_cluster.importers.snapshot.__version__", "0.0.1")
    taken(project)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(project.parent / "cache"))
    found = taken(project)
    assert found.found.made_by != "0.0.1"
    assert list(listed(project)) == ["one"]


@pytest.mark.parametrize("revision", ["../../elsewhere", "main", "", "A" * 40, "a" * 39, "\x1b[2J"])
def test_a_revision_in_the_lock_file_that_is_none(theirs, project, revision):
    theirs.commit(recipes__one=ours("one"))
    taken(project)
    pinned = {"taken": {f"{theirs.url} main": revision}}
    put(project / registries.LOCK, json.dumps(pinned))
    with pytest.raises(InvalidFile, match="hexadecimal digits") as error:
        listed(project)
    assert registries.LOCK in error.value.where
    assert ESCAPE not in error.value.message


def test_a_registry_that_takes_too_long_to_convert_is_not_taken(theirs, project, monkeypatch):
    theirs.commit(recipes__one=ours("one"))
    monkeypatch.setattr(snapshot, "CONVERTED_S", -1.0)
    with pytest.raises(Failed, match="to convert") as error:
        taken(project)
    assert "folders" in error.value.hint
    assert not (project / registries.LOCK).exists()
