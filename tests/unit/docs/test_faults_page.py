"""The page of faults: each row has a test that looks for its words, and those of the lab a time."""

import pytest
from named_tests import CHECKOUT, find, texts

from docs.generate import faults

ROWS = faults.faults()


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_a_row_is_held_by_its_test(row):
    assert find(row["test"]) is not None, f"{row['test']} is not there"
    assert all(row["says"]), "a fault without words"
    if row["test"].startswith("tests/lab/"):  # it takes words and limit from the row
        names = texts(row["test"])
        assert row["id"] in names or any(row["id"].startswith(n) for n in names if n.endswith("-"))
        time = faults.measured().get(row["id"], {"seconds": 0})
        assert time["seconds"] < row["within_s"]
    else:
        written = (CHECKOUT / row["test"].partition("::")[0]).read_text().replace("\\", "")
        assert all(words in written for words in row["says"]), row["says"]


def test_no_measurement_is_left_of_a_row_that_is_gone():
    ids = [row["id"] for row in ROWS]
    assert len(ids) == len(set(ids))
    assert set(faults.measured()) <= set(ids)


def test_the_page_has_every_row():
    page = faults.render()
    assert page.count("| `tests/") == len(ROWS)
