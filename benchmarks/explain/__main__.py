"""`python -m benchmarks.explain`: what `explain` and `lint` say of public failures and lines."""

from __future__ import annotations

from benchmarks.explain.cases import Result, cases, count, judge
from benchmarks.explain.lines import confusion


def main() -> None:
    """Print each case, the counts of the sets, and what `lint` says of posted command lines."""
    sets: dict[str, list[Result]] = {}
    for case in cases():
        result, said = judge(case)
        sets.setdefault(case.set, []).append(result)
        print(f"{result:8} {case.set:9} {case.url.removeprefix('https://github.com/')}")
        print(f"{'':19}{said[:100]}")
    print()
    for name, results in sets.items():
        counts = count(results)
        share = 100 * counts["right"] / len(results)
        figures = ", ".join(f"{number} {kind}" for kind, number in counts.items())
        print(f"{name}: {figures} of {len(results)} ({share:.0f} % right)")
    print("\nlint (worst finding, hygiene left out):")
    for (what, severity), number in sorted(confusion().items()):
        print(f"  {what:8}{severity:9}{number}")


if __name__ == "__main__":
    main()
