# SPDX-License-Identifier: Apache-2.0
"""Why a request waits, as one sentence: what is in the way, and when it clears."""

from __future__ import annotations

from dovetail.plane.broker import RequestNotice


def sentence(notice: RequestNotice | None, now_ms: int) -> str:
    """For the last news of a request; None, or without a state, where the broker has not answered yet."""
    if notice is None or not notice.state:
        return "The broker has not read the request yet."
    why = notice.why.rstrip(".") or "nothing is known to be in the way"
    if notice.state == "Granted":
        return "The request is granted."
    if notice.state == "Denied":
        return f"It can never be granted as it is written: {why}."
    if notice.state == "Offered":
        return f"An offer waits for an answer, for {_span(notice.until_ms - now_ms)} more."
    if notice.expected_ms > now_ms:
        return f"It waits: {why}; it starts in {_span(notice.expected_ms - now_ms)} at the latest."
    if notice.until_ms > now_ms:
        return f"It waits: {why}; it is tried again in {_span(notice.until_ms - now_ms)}."
    return f"It waits: {why}; when that clears is not known."


def _span(ms: int) -> str:
    seconds = max(0, -(-ms // 1000))
    return f"{seconds} s" if seconds < 120 else f"{-(-seconds // 60)} min"
