"""The document of `predict speed`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_cluster.planning.evidence import Evidence
    from spark_cluster.planning.speed.decode import Decode
    from spark_cluster.planning.speed.prefill import Prefill
    from spark_cluster.planning.speed.speculative import Speculative

MS = 1e3


@dataclass(frozen=True)
class PredictedSpeed:
    """The question, and the predicted speeds.

    Attributes:
        evidence: what was measured of it.
        too_large: why it does not fit; empty when it does, as far as its weights say.
    """

    recipe: str | None
    model: str
    quantization: str
    kv_dtype: str
    tp: int
    prompt: int
    cached: int
    context: int
    concurrency: int
    plain: Decode
    first: Prefill
    drafted: PredictedDrafter | None
    evidence: Evidence | None = None
    too_large: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `predict speed --json`."""
        plain, first, drafted = self.plain, self.first, self.drafted
        best, evidence = (drafted.found if drafted else plain).request, self.evidence
        fits = not self.too_large
        return {
            "recipe": self.recipe,
            "model": self.model,
            "quantization": self.quantization,
            "kv_dtype": self.kv_dtype,
            "tp": self.tp,
            "prompt": self.prompt,
            "cached": self.cached,
            "context": self.context,
            "concurrency": self.concurrency,
            "decode_tok_s": plain.request.to_dict() if fits else None,
            "total_tok_s": plain.total.to_dict() if fits else None,
            "bytes_per_token": round(plain.bytes_per_token),
            "prefill_tok_s": first.tokens_s.to_dict(0) if fits else None,
            "ttfr_ms": first.seconds.times(MS).to_dict(0) if fits else None,
            "speculative": drafted.to_dict() if drafted and fits else None,
            "measured": evidence.to_dict(best) if evidence and fits else None,
            "fits": fits,
            "why_not": self.too_large,
            "basis": self.basis(),
        }

    def basis(self) -> dict[str, str]:
        """Return what each figure is based on."""
        found = {"decode": self.plain.basis, "prefill": self.first.basis}
        drafted = {} if self.drafted is None else {"speculative": self.drafted.found.basis}
        return {**found, **drafted}


@dataclass(frozen=True)
class PredictedDrafter:
    """The predicted speeds with a drafter."""

    found: Speculative

    def to_dict(self) -> dict[str, Any]:
        """Return the value of `speculative` in `predict speed --json`."""
        found = self.found
        return {
            "decode_tok_s": found.request.to_dict(),
            "total_tok_s": found.total.to_dict(),
            "tokens_per_step": round(found.tokens_per_step, 2),
            "gain": round(found.gain, 2),
        }
