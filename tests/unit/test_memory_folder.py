"""Temporary folders in memory: only where programs can be run, and there is room."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import memory_folder
import pytest


@pytest.fixture
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.delenv(memory_folder.VARIABLE, raising=False)


def has(monkeypatch: pytest.MonkeyPatch, *, flags: int = 0, gib: int = 8) -> None:
    """Have every file system be like this."""
    found = SimpleNamespace(f_bavail=gib << 18, f_frsize=4096, f_flag=flags)
    monkeypatch.setattr(os, "statvfs", lambda _: found)


def test_it_is_used_where_it_suits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_named: None
) -> None:
    has(monkeypatch)
    memory_folder.use(tmp_path)
    assert os.environ[memory_folder.VARIABLE] == str(tmp_path)


@pytest.mark.parametrize("found", [{"flags": os.ST_NOEXEC}, {"gib": 1}])
def test_it_is_not_used_where_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_named: None, found: dict[str, int]
) -> None:
    has(monkeypatch, **found)
    memory_folder.use(tmp_path)
    memory_folder.use(tmp_path / "none")
    assert memory_folder.VARIABLE not in os.environ


def test_a_folder_that_the_user_names_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_named: None
) -> None:
    has(monkeypatch)
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    memory_folder.use(tmp_path)
    assert memory_folder.VARIABLE not in os.environ
