"""docs/promises.md: every promise of the README is there, and every test that it names exists."""

import re
from pathlib import Path

from named_tests import find

CHECKOUT = Path(__file__).parents[3]
PROMISES = (CHECKOUT / "docs/promises.md").read_text()
ROWS = [line.split(" | ") for line in PROMISES.splitlines() if line.startswith("| ")]
IDS = sorted(set(re.findall(r"`(tests/[^`]+)`", PROMISES)))


def section(text: str, title: str) -> str:
    """Return the text under a heading of the second level."""
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_promise_of_the_readme_is_held():
    told = section((CHECKOUT / "README.md").read_text(), "What it promises")
    promised = re.findall(r"^- \*\*(.+?)\*\*", told, re.M)
    assert promised, "the README promises something"
    held = section(PROMISES, "What it promises")
    assert [text for text in promised if f"**{text}**" not in held] == []


def test_every_promise_names_a_test():
    assert [row[0] for row in ROWS if "promise" not in row[0] and "`tests/" not in row[-1]] == []


def test_every_test_that_is_named_exists():
    assert [test_id for test_id in IDS if find(test_id) is None] == []
