"""What users write and where it is found, and what is true of a node.

Files: `yamlfile.py` (values with their places), `schema.py` (pydantic), then inventory, recipe and
registry with their schemas; `project.py` is the search path, `extension.py` what a project's own
code may do. Nodes: `facts.py` by `fact_gathering.py`, `topology.py` (what a role is given). Nothing
here opens a connection or changes a node. A new key is a field of a `Schema` with a text below it.
"""
