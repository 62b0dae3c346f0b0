# SPDX-License-Identifier: Apache-2.0
"""Confirmations of actions: a dry run gives one, and what is done has to bring it back.

Rules
- It is good for the same action of the same user for VALID_MS, and for nothing else. It has what the dry run saw.
- A page of another address cannot read it, so it cannot have an action done (CSRF), also where a proxy adds the token
  of the user to every request.
- It is a time and a keyed digest (HMAC), so nothing is kept. The key is made of the token of the user: whatever replica
  is asked knows it, and nobody else does. Where users have no tokens it is one of this process.
"""

from __future__ import annotations

import hmac
import secrets

VALID_MS = 300_000


class Confirmations:
    """Of one process."""

    def __init__(self) -> None:
        self._own = secrets.token_bytes(32)

    def made(self, action: bytes, saw: str, authorization: str, now_ms: int) -> tuple[str, int]:
        """One for this action after a dry run that saw this, and until when it is good."""
        until_ms = now_ms + VALID_MS
        return f"{until_ms}-{self._digest(action, saw, authorization, until_ms)}-{saw}", until_ms

    def seen_by(self, confirmation: str, action: bytes, authorization: str, now_ms: int) -> str | None:
        """What the dry run saw that gave it; None where it is not good."""
        until, _, rest = confirmation.partition("-")
        digest, _, saw = rest.partition("-")
        if not (until.isascii() and until.isdecimal() and len(until) < 16 and digest.isascii()):
            return None
        until_ms = int(until)
        good = hmac.compare_digest(digest, self._digest(action, saw, authorization, until_ms))
        return saw if good and now_ms <= until_ms <= now_ms + VALID_MS else None

    def _digest(self, action: bytes, saw: str, authorization: str, until_ms: int) -> str:
        key = authorization.encode("utf-8", "surrogateescape") or self._own
        # No length of what was seen, and the digest would be that of another action with more or less of it.
        seen = saw.encode("utf-8", "surrogatepass")
        return hmac.new(key, b"dovetail action %d %d " % (until_ms, len(seen)) + seen + action, "sha256").hexdigest()
