"""Check mode's picture of what earlier resources will have made."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Overlay:
    """The predicted state of check mode, in which nothing is changed.

    Attributes:
        claims: what will exist (`path:/srv`, `user:nvidia`, ...) to the id of who makes it.
        files: path to the content that it will have; None when it will be absent.
        opaque: path to the id of who gives it a content that is not known here.
    """

    claims: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes | None] = field(default_factory=dict)
    opaque: dict[str, str] = field(default_factory=dict)

    def claim(self, names: tuple[str, ...], maker: str) -> None:
        for name in names:
            self.claims.setdefault(name, maker)

    def maker(self, claim: str) -> str | None:
        """Id of the earlier resource that will provide `claim`."""
        return self.claims.get(claim)
