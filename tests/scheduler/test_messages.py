# SPDX-License-Identifier: Apache-2.0
"""The words of conditions and events: nothing of a refusal is left out, and times can be read."""

from __future__ import annotations

import pytest

from dovetail.core.decisions import Bind, Evict
from dovetail.core.reasons import Expected, NodeCount, Reason, Refusal, Sure, When
from dovetail.scheduler.messages import bound_text, duration, eviction_text, refusal_text

NOW_MS = 1_795_269_600_000
"""2026-11-21T14:00:00Z."""
HOUR_MS = 3_600_000


def refusal(expected: Expected | None = None, reclaim: str = "") -> Refusal:
    nodes = (NodeCount(Reason.INSUFFICIENT, 2, When.NOT_YET, "nvidia.com/gpu"),)
    return Refusal(Reason.NO_NODE_FITS, When.NOT_YET, nodes=nodes, total_nodes=2, expected=expected, reclaim=reclaim)


FITS = "NoNodeFits (NotYet): 0/2 nodes are available: 2 Insufficient nvidia.com/gpu."


def test_a_bind_has_its_gpus_the_bandwidth_between_them_and_what_is_not_known() -> None:
    assert bound_text(Bind("u", "n", 1), "a/p", None, assumed=False) == "Successfully assigned a/p to n"
    bind = Bind("u", "n", 1, devices=(3,), unsure="its CPUs are not known")
    kubelet = "it is not known whether its kubelet lets it in: its CPUs are not known"
    assert bound_text(bind, "a/p", None, assumed=True) == f"Successfully assigned a/p to n with GPU 3; {kubelet}"
    bind = Bind("u", "n", 1, devices=(0, 1), mbps=300, ideal_mbps=400)
    text = "Successfully assigned a/p to n with GPUs 0,1: 300 of 400 MB/s between them"
    assert bound_text(bind, "a/p", None, assumed=False) == text
    assert bound_text(bind, "a/p", None, assumed=True) == text + ", as the product is usually wired"


def test_a_plain_refusal_is_its_code_and_its_numbers() -> None:
    assert refusal_text(refusal(), NOW_MS) == FITS


def test_a_known_start_is_reported_in_utc_and_in_how_long_and_by_what() -> None:
    start = Expected(Sure.KNOWN, NOW_MS + 2 * HOUR_MS + 5 * 60_000, "the run-time limits of 3 jobs")
    assert refusal_text(refusal(start), NOW_MS) == (
        f"{FITS} It starts by 2026-11-21T16:05:00Z, in 2 h 5 min, at the latest (Known: the run-time limits of 3 jobs)."
    )


def test_a_start_that_has_come_is_now() -> None:
    assert "by 2026-11-21T14:00:00Z, now, at the latest (Learned)." in refusal_text(
        refusal(Expected(Sure.LEARNED, NOW_MS)), NOW_MS + 5
    )


def test_where_no_start_is_known_the_basis_is_reported() -> None:
    unknown = Expected(Sure.UNKNOWN, 0, "nothing is known of the run time of d/p")
    assert (
        refusal_text(refusal(unknown), NOW_MS) == f"{FITS} No start is known: nothing is known of the run time of d/p."
    )


def test_what_became_of_the_search_for_others_comes_last() -> None:
    text = refusal_text(
        refusal(Expected(Sure.LEARNED, NOW_MS + HOUR_MS, "p90 of 7 runs"), "nobody is above its due"), NOW_MS
    )
    assert text.endswith("(Learned: p90 of 7 runs). Preemption: nobody is above its due.")


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [
        (1, "1 s"),
        (59_001, "1 min"),
        (61_000, "1 min 1 s"),
        (HOUR_MS, "1 h"),
        (HOUR_MS + 5_000, "1 h"),
        (25 * HOUR_MS + 60_000, "1 d 1 h"),
        (24 * HOUR_MS + 60_000, "1 d"),
        (400 * 24 * HOUR_MS, "400 d"),
    ],
)
def test_how_long(span_ms: int, text: str) -> None:
    assert duration(span_ms) == text


@pytest.mark.parametrize(("uids", "text"), [(("a",), "1 pod is evicted"), (("a", "b"), "2 pods are evicted")])
def test_what_it_costs_is_reported(uids: tuple[str, ...], text: str) -> None:
    evict = Evict("g", uids, "reclaim", (), 90 * 60_000 * 1_000, "queue red takes its due", 1)
    assert eviction_text(evict) == f"queue red takes its due ({text}; 90.0 GPU-minutes of work are lost)"
