"""Benchmarks of what is served: suites, runs, records, comparison, reports."""
