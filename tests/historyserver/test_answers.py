# SPDX-License-Identifier: Apache-2.0
"""The answers of the collector are those of its file, and a user of one namespace sees no name of another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from dovetail.advice.sizing.rule import JobAdviceList
from dovetail.aggregated.question import Question, Reply
from dovetail.cost.capacity import CapacityAnswer
from dovetail.cost.costs import CostAnswer
from dovetail.cost.focus import FocusPart
from dovetail.cost.grouping import ELSEWHERE
from dovetail.cost.idle_pods import IdleList
from dovetail.cost.price_sources import PriceSources
from dovetail.cost.utilization import Utilization
from dovetail.history.day_sums import DaySums
from dovetail.history.pod_days import PodDay
from dovetail.history.records import HOUR_MS, Period
from dovetail.history.sqlite.reader import SqliteReader
from dovetail.historyserver.answers import advice_of, capacity_of, costs_of, focus_of, idle_of, use_of
from dovetail.historyserver.elsewhere import shown_text
from dovetail.historyserver.past_jobs import PastJobs, past_jobs_of
from dovetail.historyserver.questions import (
    BY,
    AdviceQuestion,
    CapacityQuestion,
    CostQuestion,
    FocusQuestion,
    HistoryAsked,
    IdleQuestion,
    JobTerm,
    PastJobsQuestion,
    UseQuestion,
)
from dovetail.historyserver.server import answered
from dovetail.kube.objects.views import ViewDocument
from tests.historyserver.worlds import HOURS, MARKER, OWN, START, write

PRICES = PriceSources(currency="USD")
ALL: dict[str, list[HistoryAsked]] = {
    "pastjobs": [
        PastJobsQuestion(),
        PastJobsQuestion(names=("*",)),
        PastJobsQuestion(since_ms=0, users=("user-1",), labels=(JobTerm("app", "In", ("app-0",)),)),
        PastJobsQuestion(names=(f"{MARKER}-b/*", f"{MARKER}job-1"), namespace=f"{MARKER}-b"),
    ],
    "usereports": [UseQuestion(by) for by in (*BY, "label=app")],
    "costs": [CostQuestion(by, idle=idle) for by, idle in product((*BY, "label=app"), ("separate", "weighted"))],
    "focuscosts": [FocusQuestion(), FocusQuestion("2026-11", "Europe/Berlin", "lab", carry=7)],
    "idlelists": [
        IdleQuestion(),
        IdleQuestion(least_ms=0, exempt=(f"{MARKER}-b", f"app={MARKER}app-0")),
        IdleQuestion(users=(f"{MARKER}user-0",)),
    ],
    "sizeadvice": [AdviceQuestion(), AdviceQuestion(jobs=(f"{MARKER}job-1",)), AdviceQuestion(namespace=OWN)],
    "capacityadvice": [CapacityQuestion(), CapacityQuestion("7d", "Europe/Berlin")],
}


@pytest.fixture(scope="module", params=range(3))
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "history.db"
    write(path, Random(request.param))
    return path


def ask(store: Path, resource: str, question: Any, own: str = "") -> Reply:
    text = question if isinstance(question, str) else msgspec.json.encode(question).decode()
    return answered(store, PRICES, Question(resource, own, "", (("question", text),)))


def answer(reply: Reply) -> Any:
    assert reply.status == 200, reply.body
    return json.loads(bytes(msgspec.json.decode(reply.body, type=ViewDocument).answer))


@pytest.mark.slow
def test_the_answers_are_those_of_the_file(store: Path) -> None:
    book = PRICES.book(lambda name: Path(name).read_text())
    with closing(SqliteReader(store)) as reader:
        of_file: dict[str, tuple[type, Any]] = {
            "pastjobs": (PastJobs, lambda asked: past_jobs_of(reader, asked)),
            "usereports": (Utilization, lambda asked: use_of(reader, asked)),
            "costs": (CostAnswer, lambda asked: costs_of(reader, asked, book)),
            "focuscosts": (FocusPart, lambda asked: focus_of(reader, asked, book)),
            "idlelists": (IdleList, lambda asked: idle_of(reader, asked, book)),
            "sizeadvice": (JobAdviceList, lambda asked: advice_of(reader, asked, book)),
            "capacityadvice": (CapacityAnswer, lambda asked: capacity_of(reader, asked, book)),
        }
        seen = 0
        for resource, (kind, worked_out) in of_file.items():
            for asked in ALL[resource]:
                reply = ask(store, resource, asked)
                if reply.status == 400:
                    continue
                document = msgspec.json.decode(reply.body, type=ViewDocument)
                assert msgspec.json.decode(document.answer, type=kind) == worked_out(asked)
                seen += 1
    assert seen > 30


@pytest.mark.slow
def test_no_name_of_another_namespace_is_in_any_answer(store: Path) -> None:
    """Whatever is asked, in answers and in errors; and they are in those for users that may see all."""
    marked = 0
    for resource, questions in ALL.items():
        for asked in questions:
            shown = ask(store, resource, asked, OWN)
            text = shown.body.decode()
            asked_for = msgspec.json.encode(asked).decode()
            # What the asker has named may be repeated.
            if MARKER not in asked_for or shown.status == 200:
                assert MARKER not in text, (resource, asked)
            marked += MARKER in ask(store, resource, asked).body.decode()
    assert marked > 20


def test_what_others_have_does_not_depend_on_what_is_asked_about_them(store: Path) -> None:
    """Or a user could find out about names and labels of others by their totals."""
    plain = answer(ask(store, "idlelists", IdleQuestion(least_ms=0), OWN))
    probing = IdleQuestion(least_ms=0, exempt=(f"{MARKER}-b", f"app={MARKER}app-0"), users=(f"{MARKER}user-0",))
    assert answer(ask(store, "idlelists", probing, OWN))["elsewhere"] == plain["elsewhere"]
    jobs = [answer(ask(store, "pastjobs", one, OWN)) for one in (PastJobsQuestion(since_ms=0), PastJobsQuestion(
        since_ms=0, users=(f"{MARKER}user-0",), labels=(JobTerm("app", "In", (f"{MARKER}app-0",)),)))]  # fmt: skip
    assert jobs[0]["elsewhere"] == jobs[1]["elsewhere"] > 0 and jobs[0]["jobs"] and not jobs[1]["jobs"]


@pytest.mark.parametrize("by", [*BY, "label=app"])
@pytest.mark.slow
def test_the_rows_of_a_namespace_are_its_own_and_all_together_are_the_bill(store: Path, by: str) -> None:
    whole, own = (answer(ask(store, "costs", CostQuestion(by), name)) for name in ("", OWN))
    assert own["total"]["cost_micro"] == whole["total"]["cost_micro"] > 0
    assert own["total"]["allocated_gpu_s"] == whole["total"]["allocated_gpu_s"]
    if by == "day":
        assert own["rows"] == whole["rows"]
        return
    (others,) = [row for row in own["rows"] if row["name"] == ELSEWHERE]
    if by == "namespace":
        named = {row["name"]: row for row in whole["rows"]}
        (mine,) = [row for row in own["rows"] if row["kind"] == "group" and row["name"] != ELSEWHERE]
        assert {name: mine[name] for name in ("name", "jobs", "pods", "allocated_gpu_s", "used_gpu_s")} == {
            name: named[OWN][name] for name in ("name", "jobs", "pods", "allocated_gpu_s", "used_gpu_s")
        }
        strangers = [row for name, row in named.items() if name.startswith(MARKER)]
        for name in ("jobs", "pods"):
            assert others[name] == sum(row[name] for row in strangers)
    if by in ("node", "model", "gpu"):
        assert {row["kind"] for row in own["rows"]} == {"group"}
        assert sum(row["unallocated_gpu_s"] for row in own["rows"] if row["name"] != ELSEWHERE) == 0


def test_jobs_of_the_own_namespace_and_the_number_of_others(store: Path) -> None:
    own = answer(ask(store, "pastjobs", PastJobsQuestion(names=("*",)), OWN))
    whole = answer(ask(store, "pastjobs", PastJobsQuestion(names=("*",), namespace=OWN)))
    assert [job["job"] for job in own["jobs"]] == [job["job"] for job in whole["jobs"]] != []
    assert whole["elsewhere"] == 0 < own["elsewhere"]
    messages = {step["message"] for job in own["jobs"] for step in job["steps"]} - {""}
    assert messages and all(f"for {ELSEWHERE} of nvidia.com/gpu; see pods/{OWN}/job-" in one for one in messages)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("preempted for team-b/train", "preempted for (other-namespaces)"),
        ("preempted for team-a/train", "preempted for team-a/train"),
        ("evicted by user/eve: repair", "evicted by (other-namespaces) repair"),
        ("needs 8 nvidia.com/gpu of dovetail.dev/rack", "needs 8 nvidia.com/gpu of dovetail.dev/rack"),
        ("podgroup/team-b/team-a", "(other-namespaces)"),
        ("exit code 1", "exit code 1"),
    ],
)
def test_names_of_others_in_messages(text: str, shown: str) -> None:
    assert shown_text(text, "team-a") == shown


@pytest.mark.parametrize(
    ("resource", "question", "status", "text"),
    [
        ("costs", '{"bye": 1}', 400, "is none that this collector"),
        ("costs", '{"by": "colour"}', 400, "is none of team"),
        ("costs", '{"period": "yesterday"}', 400, "yesterday"),
        ("costs", '{"idle": "no"}', 400, "--idle"),
        ("costs", '{"by": "node", "idle": "even"}', 400, "divides over holders"),
        ("costs", '{"level": -3}', 400, "is none that this collector"),
        ("costs", '{"limit": 0}', 400, "is none that this collector"),
        ("costs", '{"limit": 10001}', 400, "at most 10000 rows: name a lower --limit"),
        ("usereports", '{"by": "job", "limit": 10001}', 400, "at most 10000 rows"),
        ("pastjobs", '{"until_ms": 9223372036854775808}', 400, "is none that this collector"),
        ("pastjobs", '{"labels": [{"key": "a", "operator": "Like"}]}', 400, "is none that this collector"),
        ("pastjobs", '{"since_ms": 10, "until_ms": 5}', 400, "--since must be before"),
        ("sizeadvice", '{"jobs": ["nothing"]}', 404, "job nothing held no GPU"),
        ("capacityadvice", '{"period": "yesterday"}', 400, "yesterday"),
        ("capacityadvice", '{"time_zone": "Mars"}', 400, "Mars"),
        ("usereports", "[", 400, "is none that this collector"),
    ],
)
def test_questions_without_an_answer(store: Path, resource: str, question: str, status: int, text: str) -> None:
    reply = ask(store, resource, question)
    assert reply.status == status and text in reply.body.decode()


def test_capacity_is_answered_to_users_that_may_see_all(store: Path) -> None:
    reply = ask(store, "focuscosts", FocusQuestion(), OWN)
    assert reply.status == 400 and b"may list focuscosts in all of them" in reply.body
    reply = ask(store, "capacityadvice", CapacityQuestion(), OWN)
    assert reply.status == 400 and b"in all namespaces" in reply.body
    assert answer(ask(store, "capacityadvice", CapacityQuestion()))["kinds"]


def test_a_history_that_is_not_there_and_prices_that_cannot_be_read(store: Path, tmp_path: Path) -> None:
    none = answered(tmp_path / "none.db", PRICES, Question("costs"))
    assert none.status == 503 and "there is no such file" in none.body.decode()
    (tmp_path / "prices").mkdir()
    (tmp_path / "prices" / "a.csv").write_text("nonsense")
    (tmp_path / "prices" / "..data").write_text("hidden")
    bad = answered(store, PriceSources((str(tmp_path / "prices"),)), Question("costs"))
    assert bad.status == 500 and "a.csv" in bad.body.decode() and "..data" not in bad.body.decode()


def test_the_period_of_the_default_question_has_records() -> None:
    assert HOURS * 3_600_000 < 7 * 86_400_000


class Records(SqliteReader):
    """A file without sums of days."""

    def day_sums(self, period: Period) -> Iterator[DaySums]:
        return iter(())

    def pod_days(self, period: Period) -> Iterator[PodDay]:
        return iter(())


@pytest.mark.parametrize("by", [*BY, "label=app"])
@pytest.mark.parametrize("own", ["", OWN])
@pytest.mark.slow
def test_sums_of_days_change_no_answer(store: Path, by: str, own: str) -> None:
    """To whoever asks; days at both ends are cut."""
    book = PRICES.book(lambda name: Path(name).read_text())
    with closing(SqliteReader(store)) as reader, closing(Records(store)) as records:
        assert list(reader.pod_days(Period(0, START + HOURS * HOUR_MS)))
        for hours in (HOURS, HOURS - 5, 40):
            asked = CostQuestion(by, period=f"{hours}h")
            assert costs_of(reader, asked, book, own) == costs_of(records, asked, book, own)
            assert use_of(reader, asked, own) == use_of(records, asked, own)
