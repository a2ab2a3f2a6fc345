"""The content of a file while it is written: its digest, and whether a secret is in it."""

from __future__ import annotations

import hashlib

from spark_cluster.node.masking import marks_of


class Written:
    """The result of a write: its digest, and whether one of the secrets is in it."""

    def __init__(self, secrets: frozenset[str]) -> None:
        self._marks = marks_of(secrets)
        self._overlap = max((len(mark) for mark in self._marks), default=1) - 1
        self._end = b""
        self.digest = hashlib.sha256()
        self.secret = False

    def add(self, piece: bytes) -> None:
        self.digest.update(piece)
        if self._marks and not self.secret:
            searched = self._end + piece
            self.secret = any(mark in searched for mark in self._marks)
            self._end = searched[-self._overlap :]
