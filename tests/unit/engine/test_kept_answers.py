"""Answers of the last verify of a recipe and size: kept, and compared with other sizes."""

from dataclasses import asdict

import pytest

from spark_cluster.engine.verify import KeptAnswers, OtherAnswer, read
from spark_cluster.errors import Failed

ONE = KeptAnswers("r", 1, "hash", {"answer": "Paris", "short-answers": "Paris, 42"}, "T1")


def test_the_other_size_is_compared(tmp_path):
    ONE.keep(tmp_path)
    two = KeptAnswers("r", 2, "hash", {"answer": "Paris", "short-answers": "Paris, 41"})
    two.keep(tmp_path)
    (found,) = two.compared(tmp_path)
    assert (found.tp, found.at, found.same) == (1, "T1", ("answer",))
    assert found.different == (OtherAnswer("short-answers", "Paris, 41", "Paris, 42"),)
    assert asdict(found)["different"][0]["before"] == "Paris, 42"


@pytest.mark.parametrize(
    "other",
    [
        KeptAnswers("r", 1, "hash", ONE.answers),
        KeptAnswers("r", 2, "another recipe's", ONE.answers),
        KeptAnswers("s", 2, "hash", ONE.answers),
        KeptAnswers("r", 2, "hash", {"vision-colour": "Red"}),
    ],
)
def test_what_is_not_compared(tmp_path, other):
    ONE.keep(tmp_path)
    assert other.compared(tmp_path) == ()


def test_checks_that_did_not_run_keep_their_answers(tmp_path):
    ONE.keep(tmp_path)
    for fingerprint, more in (("hash", {"short-answers": "Paris, 42"}), ("of another recipe", {})):
        KeptAnswers("r", 1, fingerprint, {"answer": "PARIS"}).keep(tmp_path)
        assert read(tmp_path / "r.tp1.json").answers == {"answer": "PARIS", **more}


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format": 2}', '{"format": 1, "tp": "1"}', "\udc80"]
)
def test_files_that_are_none_of_ours(tmp_path, text):
    path = tmp_path / "r.tp2.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert read(path) is None
    assert ONE.compared(tmp_path) == ()


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Failed, match="the answers cannot be kept") as caught:
        ONE.keep(tmp_path / "file")
    assert "XDG_STATE_HOME" in caught.value.hint
    (tmp_path / "r.tp1.json").mkdir()
    with pytest.raises(Failed, match="the answers cannot be kept"):
        ONE.keep(tmp_path)
    assert [path.name for path in tmp_path.glob(".*")] == []
