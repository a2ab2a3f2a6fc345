"""What `spark-cluster init` writes of any answers: all of them, or nothing."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.config.discovery import Answers, write
from spark_cluster.config.project import Project
from spark_cluster.errors import UsageError


def test_unwritable_folder(tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        write(tmp_path / "none/inventory.yaml", Answers(("x",)), Project(tmp_path))


@given(st.lists(st.text(max_size=20), min_size=1, max_size=3), st.text(max_size=20))
def test_any_answer_is_written_faithfully_or_refused(addresses, user):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            found = write(
                folder / "inventory.yaml", Answers(tuple(addresses), user or None), Project(folder)
            )
        except UsageError:
            assert list(folder.iterdir()) == []
            return
        assert [node.address for node in found.nodes.values()] == addresses
        assert found.head.user == (user or None)
