# SPDX-License-Identifier: Apache-2.0
"""Decisions as the text of conditions and events.

A refusal states its code and whether waiting helps, the numbers, the latest start of the job with the basis of that
estimate, and the result of the search for victims. Times are in UTC.
"""

from __future__ import annotations

from dovetail.core.decisions import Bind, Drain, Evict
from dovetail.core.devices.collectives import AllReduce
from dovetail.core.reasons import Expected, Refusal
from dovetail.kube.objects.base import time_text

_MS_PER_MINUTE = 60_000
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def bound_text(bind: Bind, pod: str, all_reduce: AllReduce | None, *, assumed: bool) -> str:
    """The text of a bind, for users: the node and the GPUs of the pod, and what its gang can expect. `assumed`: how the
    GPUs of the node are wired is known from their product alone."""
    text = f"Successfully assigned {pod} to {bind.node}"
    if bind.devices:
        text += f" with {'GPU' if len(bind.devices) == 1 else 'GPUs'} {','.join(map(str, bind.devices))}"
    if bind.devices and bind.mbps:
        usual = ", as the product is usually wired" if assumed else ""
        text += f": {bind.mbps} of {bind.ideal_mbps} MB/s between them{usual}"
    if all_reduce is not None:
        text += f"; the gang: {all_reduce}"
    if bind.unsure:
        text += f"; it is not known whether its kubelet lets it in: {bind.unsure}"
    return text


def refusal_text(refusal: Refusal, now_ms: int) -> str:
    """The text of a refusal, for users."""
    sentences = [f"{refusal.reason.code} ({refusal.when}): {refusal}"]
    if refusal.expected is not None:
        sentences.append(expected_start(refusal.expected, now_ms))
    if refusal.reclaim:
        sentences.append(f"Preemption: {refusal.reclaim}")
    if len(sentences) == 1:
        return sentences[0]
    return " ".join(sentence if sentence.endswith(".") else f"{sentence}." for sentence in sentences)


def expected_start(expected: Expected, now_ms: int) -> str:
    """The expected start as one sentence."""
    if not expected.start_ms:
        return f"No start is known: {expected.basis}"
    left_ms = expected.start_ms - now_ms
    away = f"in {duration(left_ms)}" if left_ms > 0 else "now"
    basis = f": {expected.basis}" if expected.basis else ""
    return f"It starts by {time_text(expected.start_ms)}, {away}, at the latest ({expected.sure}{basis})"


def duration(span_ms: int) -> str:
    """The span in its two largest units: "2 h 5 min". Seconds are rounded up."""
    left_s = -(-span_ms // 1_000)
    parts = []
    for unit, seconds in _UNITS:
        count, left_s = divmod(left_s, seconds)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return " ".join(parts) or "0 s"


def eviction_text(evict: Evict | Drain) -> str:
    """The beneficiary and the reason of an eviction, and the work that it loses."""
    count = "1 pod is evicted" if len(evict.uids) == 1 else f"{len(evict.uids)} pods are evicted"
    return f"{evict.message} ({count}; {evict.lost_milli_ms / 1_000 / _MS_PER_MINUTE:.1f} GPU-minutes of work are lost)"
