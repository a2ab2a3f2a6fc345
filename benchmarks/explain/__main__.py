"""`python -m benchmarks.explain`: how often `explain` names the cause of a public failure."""

from __future__ import annotations

from benchmarks.explain.cases import Result, cases, count, judge


def main() -> None:
    """Print each case, then the counts of both sets."""
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


if __name__ == "__main__":
    main()
