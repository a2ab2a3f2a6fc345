"""A project with a registry, and the repository that it names."""

from pathlib import Path

import pytest
from registry_samples import Repository, name_registry, repository


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def theirs(tmp_path: Path, project: Path) -> Repository:
    """The repository of the project's registry `theirs`."""
    made = repository(tmp_path / "theirs")
    name_registry(project, made.url)
    return made
