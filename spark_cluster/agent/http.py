"""One HTTP request from this node, with no proxy and no redirect."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


def ask(request: Mapping[str, Any]) -> dict[str, Any]:
    """Status and body of `url`; status 0 and a `reason` when there is no answer.

    Args:
        request: url, and perhaps method, headers, body (text) and timeout (seconds).
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    body = request.get("body")
    try:
        call = urllib.request.Request(  # noqa: S310  (the laptop gives the address)
            request["url"],
            data=None if body is None else body.encode(),
            headers=dict(request.get("headers", {})),
            method=request.get("method", "GET"),
        )
        with opener.open(call, timeout=float(request.get("timeout", 10.0))) as answer:
            return {"status": answer.status, "body": answer.read().decode(errors="replace")}
    except urllib.error.HTTPError as error:
        return {"status": error.code, "body": error.read().decode(errors="replace")}
    except urllib.error.URLError as error:
        return {"status": 0, "body": "", "reason": str(error.reason)}
    except (OSError, http.client.HTTPException) as error:
        return {"status": 0, "body": "", "reason": str(error) or type(error).__name__}
    except ValueError:  # its text would show the header, which may be a key
        reason = "the address or a header has characters that HTTP cannot carry"
        return {"status": 0, "body": "", "reason": reason}
