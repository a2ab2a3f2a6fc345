"""The catalogue of what can go wrong: each trouble once, with its cause, fix and source.

`catalogue/*.toml` has the entries and how each is found, `entries.py` reads them: in a launch
(`rules.lint`), in logs (`explain.explain`, the earliest real error first; `entries.known_for` for
one line), behind a readiness check that failed (`rules.live`). `doctor` takes cause and fix from
here. A new issue is an entry, with at most one function in `rules_flags.py` or `rules_model.py`.
"""
