# SPDX-License-Identifier: Apache-2.0
"""What a tool answers: a short text for the model, and the same as typed content; or an error.

Rules
- A text has MOST_TEXT characters at most. The content is bounded where it is made (`descriptions`).
- An error has a code, what is wrong, where (a field, "" where it is none), and what to do next.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

MOST_TEXT = 6_000
_CUT = "\n(The rest is left out.)"


class ToolErrorCode(StrEnum):
    """Why a call had no effect."""

    INVALID_ARGUMENTS = "InvalidArguments"
    UNKNOWN_TOOL = "UnknownTool"
    UNKNOWN_REQUEST = "UnknownRequest"
    UNKNOWN_OFFER = "UnknownOffer"
    UNKNOWN_LEASE = "UnknownLease"
    REQUEST_CLOSED = "RequestClosed"
    NO_OFFERS = "NoOffers"
    ANSWER_UNDER_WAY = "AnswerUnderWay"
    TOO_MANY_REQUESTS = "TooManyRequests"
    TOO_MANY_CALLS = "TooManyCalls"
    TOO_MANY_WAIT = "TooManyWait"
    RENEWAL_REFUSED = "RenewalRefused"
    LEASE_OVER = "LeaseOver"
    BROKER_REFUSED = "BrokerRefused"


class ToolError(Exception):
    """The call had no effect."""

    def __init__(self, code: ToolErrorCode, what: str, next_step: str, field: str = "") -> None:
        super().__init__(what)
        self.code = code
        self.what = what
        self.next_step = next_step
        self.field = field


class ToolAnswer(Struct, frozen=True):
    """`text` is for the model, `content` the same as JSON. With `failed` the call had no effect."""

    text: str
    content: dict[str, object]
    failed: bool = False


def answer_of(lines: list[str], content: dict[str, object]) -> ToolAnswer:
    """An answer of these lines, cut where it is too long."""
    return ToolAnswer(_bounded("\n".join(lines)), content)


def failure(error: ToolError) -> ToolAnswer:
    """The answer for an error."""
    where = f"\nField: {error.field}" if error.field else ""
    text = f"Error {error.code}: {error.what}{where}\nNext: {error.next_step}"
    found = {"code": error.code.value, "what": error.what, "field": error.field, "next": error.next_step}
    return ToolAnswer(_bounded(text), {"error": found}, True)


def _bounded(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - len(_CUT)]}{_CUT}"
