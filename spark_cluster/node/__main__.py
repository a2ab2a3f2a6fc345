"""Run a program of ours: `python3 FOLDER/spark_cluster/node MODULE:FUNCTION WORD ...`.

FOLDER is a folder or an archive (zip) with this package: on a node the code of the agent, or the
archive of a unit. The modules here have names of the standard library's, so this folder itself must
not be searched.
"""

import sys
from importlib import import_module

if __name__ == "__main__":
    sys.path[0] = __file__.rsplit("/", 3)[0]
    _module, _, _function = sys.argv[1].partition(":")
    sys.exit(getattr(import_module(_module), _function)(*sys.argv[2:]))
