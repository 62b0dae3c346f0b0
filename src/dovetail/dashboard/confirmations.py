# SPDX-License-Identifier: Apache-2.0
"""Confirmations of actions: a dry run gives one, and what is done has to bring it back.

Rules
- It is good for the same action of the same user for VALID_MS, and for nothing else. A page of another address cannot
  read it, so it cannot have an action done (CSRF), also where a proxy adds the token of the user to every request.
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

    def made(self, action: bytes, authorization: str, now_ms: int) -> tuple[str, int]:
        """One for this action, and until when it is good."""
        until_ms = now_ms + VALID_MS
        return f"{until_ms}-{self._digest(action, authorization, until_ms)}", until_ms

    def good(self, confirmation: str, action: bytes, authorization: str, now_ms: int) -> bool:
        until, _, digest = confirmation.partition("-")
        if not (until.isascii() and until.isdecimal() and len(until) < 16 and digest.isascii()):
            return False
        until_ms = int(until)
        good = hmac.compare_digest(digest, self._digest(action, authorization, until_ms))
        return good and now_ms <= until_ms <= now_ms + VALID_MS

    def _digest(self, action: bytes, authorization: str, until_ms: int) -> str:
        key = authorization.encode("utf-8", "surrogateescape") or self._own
        return hmac.new(key, b"dovetail action %d " % until_ms + action, "sha256").hexdigest()
