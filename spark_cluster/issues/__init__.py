"""The catalogue of what can go wrong: each trouble once, with its cause, fix and source.

catalogue/*.toml        the entries, and how each is found
rules.lint              in a launch, before anything is started
explain.explain         in logs, the earliest real error first
log_matching.known_for  the entry that explains one line of a log
live_issues.live        in a rung of readiness that failed
The checks of `doctor` take cause and fix from here by the entry's id.
"""
