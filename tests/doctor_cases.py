"""Sick nodes: for each check at least one that it finds, and which the lab cannot produce.

A case is the id of the check, what differs from the healthy node of `doctor_samples`, the status,
and words of what was found.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from cases import cases
from doctor_samples import HCAS, answer, inspected, interfaces, logged, row_of, trees, with_env

from spark_cluster.doctor import serving
from spark_cluster.issues.entries import for_check

Case = tuple[str, dict[str, Any], str, str]

SWAP = "Filename Type Size Used Priority\n/swap.img file 16777212 0 -2\n"
FRAGMENTED = "Node 0, zone Normal 81231 40211 20102 9021 3021 811 120 27 5 0 0\n"
ALL_DOWN = HCAS.replace("(Up)", "(Down)")


def kernel(*said: str) -> str:
    """Lines of the kernel as the journal prints them, a second apart."""
    stamp = "2026-11-20T15:00:{:02}.000000+00:00 spark-2a60 kernel: {}\n"
    lines = (stamp.format(n, line) for n, line in enumerate(said))
    return _said(1, "kernel_log") + "".join(lines)


def _said(number: int, source: str) -> str:
    return answer(number)["commands"][source]["stdout"]


def _links(number: int, rows: list[dict[str, Any]]) -> str:
    """`ip -j addr` with some interfaces replaced."""
    replaced = {row["name"]: row_of(**row) for row in rows}
    return json.dumps([replaced.get(row["ifname"], row) for row in interfaces(number)])


def _replaced(text: str, pairs: Iterable[Sequence[str]]) -> str:
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def changes(case: dict[str, Any], number: int = 1) -> dict[str, Any]:
    """Return the changes of `seen` that a case of data/doctor/sick.toml means."""
    found = {**case.get("answers", {}), **dict.fromkeys(case.get("silent", ()))}
    for name, said in case.get("failed", {}).items():
        found[name] = tuple(said)
    for name, pairs in case.get("replaced", {}).items():
        found[name] = _replaced(_said(number, name), pairs)
    for name, lines in case.get("kernel", {}).items():
        found[name] = kernel(*lines * case.get("times", 1))
    for tree, values in case.get("sysfs", {}).items():
        found[tree] = {
            path: values.get(path.split("/")[4], text) for path, text in trees(number)[tree].items()
        }
    if "interfaces" in case:
        found["ip"] = _links(number, case["interfaces"])
    for name, fields in case.get("container", {}).items():
        found["containers"] = inspected(number, name, **fields)
    for name, nulls in case.get("null", {}).items():
        found["containers"] = inspected(number, name, **dict.fromkeys(nulls))
    for name, variables in case.get("env", {}).items():
        found["containers"] = with_env(number, name, **variables)
    for name, variables in case.get("lacks", {}).items():
        found["containers"] = with_env(number, name, **dict.fromkeys(variables))
    if "log" in case:
        found["logs"] = logged(case["log"])
    if "context" in case:
        found["context"] = case["context"]
    return found


def _cases(file: str, table: str = "node", number: int = 1) -> list[Case]:
    return [
        (row["check"], changes(row, number), row["status"], row.get("found", ""))
        for row in cases(__file__, f"data/doctor/{file}")[table]
    ]


SICK = _cases("sick.toml")

NOT_SICK = _cases("not_sick.toml")

UNLIKE = _cases("sick.toml", "pair", 2)
"""The same of the second node of two, of which the first one is healthy."""

SICK += [
    (search.id, {"logs": logged(issue.samples[0])}, "fail", issue.samples[0][-40:])
    for search in serving.SEARCHES
    for issue in search.issues
]


SICK += [
    (id, {source: kernel(sample)}, status if issue.severity == "error" else "warn", sample[10:28])
    for id, source, status in (
        ("kernel.fault", "kernel_log", "fail"),
        ("driver.power-off", "previous_kernel", "warn"),
    )
    for issue in for_check(id)
    for sample in issue.samples
]


NOT_PRODUCED: dict[str, str] = {
    "link.rdma-rate": "there is no RDMA without the hardware",
    "link.cabling": "it takes three nodes: tests/lab/test_more_nodes.py cables them in a ring",
    "pair.same-port": "the lab's cable cannot be moved to the other port",
    "kernel.mstflint": "the nodes' kernel, with its modules, is this machine's",
    "serving.image-store": "Debian's Docker is older than 29.5",
    "system.disk": "the nodes' disk is this machine's",
    "system.ssh-folder": "it would lock the lab out of its own node",
}
"""Checks whose trouble no breakage of the lab produces, each with the reason."""
