"""nft over tables that are given as data: name to its lines, as the last file had them.

`refuses` is the text with which every change fails; handles and counters grow with every question.
"""

import json
import re
from pathlib import Path
from typing import Any

from common import Refuse


def main(state: dict[str, Any], root: Path, command: str, argv: list[str]) -> None:
    tables = state.setdefault("tables", {})
    words = [word for word in argv if word != "-j"]
    if words[:3] == ["list", "table", "inet"]:
        if state.get("deaf"):
            raise Refuse(1, f"Error: {state['deaf']}\nlist table inet {words[3]}")
        if words[3] not in tables:
            raise Refuse(1, f"Error: No such file or directory\nlist table inet {words[3]}")
        show(state, words[3])
    elif words == ["list", "tables"]:
        print(*(f"table inet {name}" for name in tables), sep="\n")
    elif state.get("refuses"):
        raise Refuse(1, f"{words[-1]}:3:1-5: Error: {state['refuses']}\n  ^^^^^")
    elif words[:3] == ["delete", "table", "inet"]:
        del tables[words[3]]
    else:
        load(tables, words)


def load(tables: dict[str, list[str]], words: list[str]) -> None:
    *options, file = words
    assert options in (["-f"], ["-c", "-f"]), words
    text = Path(file).read_text()
    if "BROKEN" in text:
        raise Refuse(1, f"{file}:3:1-5: Error: syntax error, unexpected string\n  ^^^^^")
    name, body = re.fullmatch(
        r"(?:#.*\n)*table inet (\w+)\ndelete table inet \1\n(table inet \1 \{\n.*\n\}\n)",
        text,
        re.DOTALL,
    ).groups()
    if options == ["-f"]:
        tables[name] = body.splitlines()


def show(state: dict[str, Any], name: str) -> None:
    asked = len(state["calls"])
    rows: list[dict[str, Any]] = [{"metainfo": {"version": "1.0.6"}}]
    rows.append({"table": {"family": "inet", "name": name, "handle": asked}})
    for number, line in enumerate(state["tables"][name]):
        counter = {"counter": {"packets": asked, "bytes": 40}}
        rule = {"table": name, "handle": number, "expr": [{"match": line}, counter]}
        rows.append({"rule": rule})
    print(json.dumps({"nftables": rows}))
