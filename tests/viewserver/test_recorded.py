# SPDX-License-Identifier: Apache-2.0
"""A decision that the scheduler opens from its own recording; what cannot be opened, or takes long, has its reason."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dovetail.aggregated.question import BadQuestion, Question
from dovetail.core.json_text import decode_json
from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.kube.objects.views import RECORDED_DECISIONS, ViewDocument
from dovetail.recording.decided import DecidedRun
from dovetail.viewserver import recorded
from dovetail.viewserver.answers import ViewAnswers
from tests.dashboard.test_recorded_decisions import recording as recording

ASKED = msgspec.json.encode({"decision": "run1-2"}).decode()


def answers(folder: Path | None) -> ViewAnswers:
    return ViewAnswers(State(Policy()), 1_800_000_000_000, "dovetail", recording=folder)


def test_the_answer_is_the_step_for_users_that_may_see_all_namespaces(recording: Path) -> None:
    reply = answers(recording).answer(Question(RECORDED_DECISIONS.plural, body=ASKED))
    found = decode_json(decode_json(reply.body, ViewDocument).answer, DecidedRun)
    assert (found.run, found.step, [one.job for one in found.waiting]) == ("run1", 2, ["ns/late"])
    reply = answers(recording).answer(Question(RECORDED_DECISIONS.plural, "ns", body=ASKED))
    assert reply.status == 403 and b"ns/late" not in reply.body
    reply = answers(None).answer(Question(RECORDED_DECISIONS.plural, body=ASKED))
    assert (reply.status, reply.body) == (404, b"the scheduler keeps no recording (--recording)")
    assert answers(recording).answer(Question(RECORDED_DECISIONS.plural, body="{}")).status == 400


def test_what_takes_longer_than_the_limit_ends_with_what_has_none(recording: Path) -> None:
    with pytest.raises(BadQuestion, match="`dovetail replay PATH --decision run1-2` has no limit") as raised:
        recorded.repeated(recording, "run1-2", limit_s=-1.0)
    assert raised.value.status == 504
    assert recorded.repeated(recording, "run1-2").step == 2


def test_a_recording_that_is_gone_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadQuestion) as raised:
        recorded.repeated(tmp_path / "gone", "run1-2")
    assert raised.value.status in (404, 503)
