# SPDX-License-Identifier: Apache-2.0
"""How far a request is, and what the model can do now: in words, and as JSON."""

from __future__ import annotations

from dovetail.plane.lease import PlaneLease
from dovetail.plane.mcp import descriptions
from dovetail.plane.mcp.answers import ToolAnswer, answer_of
from dovetail.plane.mcp.quoting import clean, quoted
from dovetail.plane.mcp.requests import SteeredRequest


def answer_for(request: SteeredRequest, now_ms: int) -> ToolAnswer:
    """The answer of a tool that was about this request."""
    about = f"{request.id} {quoted(request.note)}" if request.note else request.id
    content: dict[str, object] = {"request": request.id, "name": request.note, "state": request.state}
    if request.lease is not None:
        return _held(request, request.lease, about, content)
    if request.ended:
        content["why"] = clean(request.ended)
        return answer_of([f"{about} has ended: {quoted(request.ended)}.", "Next: ask again."], content)
    content["why"] = clean(request.sentence)
    lines = list[str]()
    if request.refused:
        content["answer_refused"] = clean(request.refused)
        lines.append(f"Your last answer had no effect: {quoted(request.refused)}.")
    offers = request.offers
    if offers:
        content["answer_within_seconds"] = request.answer_within_s
        content["offers"] = [descriptions.offer_content(one, offer, now_ms) for one, offer in offers.items()]
        lines.append(f"{about} has {len(offers)} offer(s); answer within {request.answer_within_s} s:")
        lines += [descriptions.offer_line(one, offer, now_ms) for one, offer in offers.items()]
        lines.append(
            f"Next: accept one, or counter or decline {request.id}. To accept after that takes the terms when they are "
            "offered again."
        )
    elif request.accepted is not None:
        terms = descriptions.in_words(request.accepted.alternative)
        lines.append(f"{about}: you accepted {terms}. It is not granted yet: {quoted(request.sentence)}.")
        lines.append(f"Next: offers(request={request.id}, wait_seconds=50) waits for it.")
    else:
        lines.append(f"{about} has no offer yet: {quoted(request.sentence)}.")
        lines.append(f"Next: offers(request={request.id}, wait_seconds=50) waits for one; withdraw ends it.")
    return answer_of(lines, content)


def _held(request: SteeredRequest, lease: PlaneLease, about: str, content: dict[str, object]) -> ToolAnswer:
    line = descriptions.lease_line(request.id, lease, "", descriptions.MOST_NODES)
    content["lease"] = descriptions.lease_content(request.id, lease, request.note, descriptions.MOST_NODES)
    if lease.over.is_set():
        return answer_of([f"{about} was granted, and is over:", line, "Next: do not use its devices."], content)
    return answer_of(
        [f"{about} is granted:", line, f"Next: use the devices; give_back(lease={request.id}) when done."], content
    )
