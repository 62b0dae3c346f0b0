# SPDX-License-Identifier: Apache-2.0
"""Whether the API of views is to be registered. While an API is registered that nobody answers, the API server ends no
namespace.

| state | registered | next |
|---|---|---|
| Awaited: no leader has written its address | no | Registered, when one has |
| Registered | yes | Withdrawn, when nothing answers for `UNANSWERED_S`; Awaited, when the address is gone |
| Withdrawn | no | Registered, after a pause, when a leader has written its address since |

What takes the API away takes the address away first, and a leader that lives writes it again: so the address shows
that there is one. A leader whose address the API server does not reach writes it, too. Therefore the pause: it doubles
each time, up to `PAUSE_MAX_S`, until an API was answered for `STEADY_S`.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

UNANSWERED_S = 180.0
PAUSE_S, PAUSE_MAX_S = 60.0, 3600.0
STEADY_S = 600.0


class ViewState(StrEnum):
    """See the table."""

    AWAITED = "Awaited"
    REGISTERED = "Registered"
    WITHDRAWN = "Withdrawn"


class ViewFacts(Struct, frozen=True):
    """`address`: a leader has written one. `answered`: whether the API server gets answers, None where the API is not
    there or was not checked yet. `why`: the API server's reason."""

    address: bool = False
    answered: bool | None = None
    why: str = ""


class ViewRecord(Struct, frozen=True):
    """Where one registration is. Times are of a monotonic clock.

    answered      the API was answered since it was registered last
    since_s       since when it is answered, or not answered; None where neither is known
    why           why it was not answered, of the first time
    until_s       when the pause ends
    tries         how often it was withdrawn without having been answered for `STEADY_S`
    """

    state: ViewState = ViewState.AWAITED
    answered: bool = False
    since_s: float | None = None
    why: str = ""
    until_s: float = 0.0
    tries: int = 0

    @property
    def due_s(self) -> float | None:
        """When something is due though nothing changes."""
        if self.state is ViewState.WITHDRAWN:
            return self.until_s
        if self.state is ViewState.REGISTERED and self.why and self.since_s is not None:
            return self.since_s + UNANSWERED_S
        return None


def followed(record: ViewRecord, facts: ViewFacts, now_s: float) -> ViewRecord:
    """The record after these facts."""
    match record.state:
        case ViewState.AWAITED:
            return replace(record, state=ViewState.REGISTERED) if facts.address else record
        case ViewState.WITHDRAWN:
            if not facts.address or now_s < record.until_s:
                return record
            return ViewRecord(ViewState.REGISTERED, tries=record.tries)
    return _registered(record, facts, now_s)


def withdrawn(why: str, now_s: float, tries: int = 1) -> ViewRecord:
    """The record of an API that is taken away now, for the `tries`th time."""
    pause_s = min(PAUSE_MAX_S, PAUSE_S * 2.0 ** min(tries - 1, 10))
    return ViewRecord(ViewState.WITHDRAWN, why=why, until_s=now_s + pause_s, tries=tries)


def _registered(record: ViewRecord, facts: ViewFacts, now_s: float) -> ViewRecord:
    if not facts.address:
        return ViewRecord(tries=record.tries)
    since_s = record.since_s
    if facts.answered is None:
        return replace(record, since_s=None, why="")
    if facts.answered:
        began_s = now_s if since_s is None or record.why else since_s
        tries = 0 if now_s - began_s >= STEADY_S else record.tries
        return replace(record, answered=True, since_s=began_s, why="", tries=tries)
    # What was answered for long enough has a clean past, also when that is noticed only now.
    tries = 0 if since_s is not None and not record.why and now_s - since_s >= STEADY_S else record.tries
    began_s = since_s if since_s is not None and record.why else now_s
    why = record.why or facts.why or "NotAnswered"
    # As in `due_s`: differences of floats can be less than what was added, and nobody would look again.
    if now_s >= began_s + UNANSWERED_S:
        return withdrawn(why, now_s, tries + 1)
    return replace(record, since_s=began_s, why=why, tries=tries)
