# SPDX-License-Identifier: Apache-2.0
"""A window of the jobs is the beginning of the whole list, searched and sorted by its rows."""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.core.model import Gang, Pod
from dovetail.core.state import State
from dovetail.kube.translate.ended import EndedPod
from dovetail.views.job_list import by_amounts, job_list, jobs_of
from dovetail.views.job_states import STATES, WAITING
from dovetail.views.job_types import SORTS, JobFilter, JobList, JobRow, JobTime, JobWindow
from dovetail.views.known_jobs import UnfinishedJobs
from dovetail.views.outlook import Outlook
from tests.views.queued import HOUR, MINUTE, NOW, node, pod, queue, state_of

WORLDS, WINDOWS = 6, 25
NAMES = ("run-2", "run-10", "RUN-3", "eval", "été", "a-007", "a-07", "b9z")
QUEUES = ("", "low", "Low-2", "low-10", "lost")
WORDS = (
    "run", "RUN", "-1", "team-a/", "low", "Waiting", "wait", "n1", "nonodefits", "oom", "ann", "é", "x", "team-b/run",
)  # fmt: skip


def world(seed: int) -> tuple[State, list[EndedPod]]:
    """Gangs, sweeps and pods of two namespaces that run, wait, end and are done, with many that are equal."""
    dice = random.Random(seed)
    objects: list[Any] = [node(f"n{i}") for i in range(1, 12)]
    objects += [queue("low"), queue("Low-2"), queue("low-10")]
    free = {f"n{i}": 8 for i in range(1, 12)}
    ended, pods = list[EndedPod](), set[str]()
    for number in range(dice.randrange(10, 40)):
        namespace, name = dice.choice(("team-a", "team-b")), f"{dice.choice(NAMES)}-{dice.randrange(4)}"
        kind, count, gpus = dice.choice(("", "Job", "gang")), dice.randrange(1, 4), dice.choice((1, 1, 2, 8))
        gang = f"gang/{namespace}/{name}-{number}" if kind == "gang" else ""
        if gang:
            objects.append(Gang(gang, namespace, f"{name}-{number}"))
        more = {"namespace": namespace, "queue": dice.choice(QUEUES), "gang": gang}
        more["made_for"] = f"Job/{name}" if kind == "Job" else ""
        done = dice.random() < 0.2
        for at in range(count):
            on = next((one for one in free if free[one] >= gpus), "") if dice.random() < 0.7 or done else ""
            created = dice.choice((0, MINUTE, HOUR, HOUR, 2 * HOUR))
            # Some pods have the name of a Job.
            called = f"{name}-{number}-{at}" if kind or at or name in pods else name
            pods.add(called)
            one = pod(called, gpus, on, dice.choice((0, 5 * HOUR)), dice.choice((MINUTE, HOUR)), **more)
            one = replace(one, user=dice.choice(("ann", "Bob", "")), created_ms=NOW - created if created else 0)
            if done:
                good = dice.random() < 0.5
                begun = dice.choice((0, NOW - HOUR))
                code = "" if good else dice.choice(("Error", "OOMKilled"))
                job = f"{namespace}/{name}" if kind == "Job" else one.key
                ended.append(EndedPod(one, "", job, good, begun, NOW - dice.choice((MINUTE, HOUR)), code))
                continue
            if on:
                free[on] -= gpus
            objects.append(replace(one, deleting=bool(on) and dice.random() < 0.2))
    return state_of(*objects), ended


def outlook_of(state: State) -> Outlook:
    return Outlook(state, NOW, whole=True)


@cache
def known(seed: int) -> tuple[Outlook, UnfinishedJobs, list[EndedPod]]:
    """The world of this seed, with what is worked out of it once for all questions, as the server of views keeps it."""
    state, ended = world(seed)
    return outlook_of(state), UnfinishedJobs(state), ended


def natural(text: str) -> list[tuple[int, int, str]]:
    """Every number by its amount, every other letter by itself."""
    return [(1, int(one), "") if one.isdigit() else (2, 0, one) for one in re.findall("[0-9]+|[^0-9]", text.lower())]


def at(time: JobTime | None) -> float:
    return time.at.timestamp() if time is not None and time.at is not None else 0


def by(row: JobRow, sort: str) -> Any:
    """What the page shows in this column of the row."""
    if sort in ("job", "queue", "user", "reason"):
        return natural(getattr(row, sort))
    if sort in ("start", "end"):
        return at(getattr(row, sort))
    submitted = row.submitted.timestamp() if row.submitted is not None else 0
    values = {"state": row.state, "gpus": row.gpus_milli, "pods": row.placed, "submitted": submitted}
    return values[sort] if sort in values else natural(" ".join(row.nodes))


def shows(row: JobRow, word: str) -> bool:
    cells = (row.job, row.state, row.queue, row.user, *row.nodes, row.reason)
    return any(word.lower() in cell.lower() for cell in cells)


@pytest.mark.parametrize("seed", range(WORLDS))
@pytest.mark.slow
def test_a_window_is_the_whole_list_searched_sorted_and_cut(seed: int) -> None:
    (outlook, unfinished, ended), dice = known(seed), random.Random(seed)
    lists = dict[tuple[JobFilter, int], JobList]()
    for _ in range(WINDOWS):
        namespace = dice.choice(("", "team-a"))
        wanted = JobFilter(namespace=namespace, states=dice.choice(((), (), (WAITING,), STATES["all"])))
        most = dice.choice((0, 100))
        if (whole := lists.get((wanted, most))) is None:
            whole = jobs_of(outlook, wanted, ended, most_ahead=most, alone=bool(namespace))
            lists[wanted, most] = whole
        asked = replace(
            wanted, words=tuple(dice.sample(WORDS, dice.choice((0, 0, 1, 1, 2)))), sort=dice.choice(("", *SORTS)),
            descending=dice.random() < 0.5, first=dice.choice((1, 3, 7, 1000)),
        )  # fmt: skip
        window = jobs_of(outlook, asked, ended, most_ahead=most, alone=bool(namespace), unfinished=unfinished)
        found = [row for row in whole.jobs if all(shows(row, word) for word in asked.words)]
        if asked.sort:
            # Bubbles: those that are equal never pass each other.
            for end in range(len(found), 0, -1):
                for here in range(end - 1):
                    a, b = by(found[here], asked.sort), by(found[here + 1], asked.sort)
                    if (a < b) if asked.descending else (b < a):
                        found[here], found[here + 1] = found[here + 1], found[here]
        assert isinstance(window, JobWindow)
        assert window.jobs == tuple(found[: asked.first])
        assert (window.total, window.found, window.elsewhere) == (len(whole.jobs), len(found), whole.elsewhere)
        assert window.looked_ahead == whole.looked_ahead


def test_a_job_is_found_by_its_name_however_many_others_have_the_word_elsewhere() -> None:
    runs = [pod(f"runs-{i}", 1, "n", user="train") for i in range(5)]
    outlook = outlook_of(state_of(node("n"), *runs, pod("Train-1", 1, waits_ms=MINUTE)))
    for wanted, found in (
        (JobFilter(words=("train",), first=1), ["ns/runs-0"]),
        (JobFilter(name_words=("TRAIN",), first=1), ["ns/Train-1"]),
        (JobFilter(name_words=("ns/", "1"), first=9), ["ns/runs-1", "ns/Train-1"]),
        (JobFilter(name_words=("1",), words=("running",), first=9), ["ns/runs-1"]),
    ):
        window = jobs_of(outlook, wanted, most_ahead=9)
        assert isinstance(window, JobWindow)
        assert ([row.job for row in window.jobs], window.total) == (found, 6)


def test_words_that_no_reason_has_are_found_without_looking_ahead() -> None:
    pods = [pod("runs", 1, "n"), *(pod(f"waits-{i}", 8, waits_ms=MINUTE) for i in range(3))]
    for words, found, looked in (
        (("runs",), ["ns/runs"], False),
        (("zzz",), [], False),
        (("nonode", "zzz"), [], False),
        (("nonode",), [f"ns/waits-{i}" for i in range(3)], True),
        (("waits-1",), ["ns/waits-1"], True),
    ):
        outlook = outlook_of(state_of(node("n"), *pods))
        window = jobs_of(outlook, JobFilter(words=words, first=9), most_ahead=9)
        assert [row.job for row in window.jobs] == found
        assert ("ahead" in vars(outlook)) == looked, words


def test_the_worlds_have_what_windows_are_about() -> None:
    lists = []
    for outlook, unfinished, ended in map(known, range(WORLDS)):
        lists.append(jobs_of(outlook, JobFilter(), ended, most_ahead=100, unfinished=unfinished).jobs)
    rows = [row for jobs in lists for row in jobs]
    assert {row.state for row in rows} == set(STATES["all"])
    for sort in SORTS:
        assert any(len({str(by(row, sort)) for row in jobs}) < len(jobs) for jobs in lists), f"none is equal in {sort}"
        assert len({str(by(row, sort)) for row in rows}) > 2, sort
    for word in WORDS:
        assert any(shows(row, word) for row in rows) == (word != "x"), word


def test_numbers_count_by_their_amount_however_long() -> None:
    names = ["n-9", "n-10", "N-10a", "n-010b", "n-" + "9" * 5000, "n-1" + "0" * 5000]
    assert sorted(random.Random(1).sample(names, len(names)), key=by_amounts) == names
    assert by_amounts("n-010") == by_amounts("N-10")


def test_a_job_keeps_its_place_while_others_come_and_go() -> None:
    """Jobs that are equal in all that is sorted by are by name and kind, in whatever order they became known."""
    pods = [
        pod("b", 1, "n", 0, HOUR), pod("a", 1, "n", 0, HOUR), pod("c-x", 1, "n", 0, HOUR, made_for="Job/c"),
        pod("c", 1, "n", 0, HOUR),
    ]  # fmt: skip
    for sort in ("", *SORTS):
        for known in (pods, pods[::-1], [pods[2], pods[0], pods[3], pods[1]]):
            wanted = JobFilter(sort=sort, first=9)
            found = job_list(state_of(node("n"), *known), NOW, wanted, most_ahead=9).jobs
            assert [(row.job, row.kind) for row in found] == [
                ("ns/a", "Pod"), ("ns/b", "Pod"), ("ns/c", "Job"), ("ns/c", "Pod"),
            ]  # fmt: skip


def test_others_are_no_more_than_a_number_whatever_is_asked() -> None:
    """Neither words nor an order nor a first show an asker of one namespace what jobs of others are called."""
    own = [pod("mine", 1, namespace="team-a", waits_ms=MINUTE)]
    others: list[Pod] = [pod(f"secret-{i}", 1 + i, namespace="team-b", waits_ms=HOUR) for i in range(3)]
    outlook = outlook_of(state_of(node("n"), *own, *others))
    for words in ((), ("secret",), ("team-b",), ("mine",)):
        for sort in ("", *SORTS):
            wanted = JobFilter(namespace="team-a", words=words, sort=sort, first=5)
            found = jobs_of(outlook, wanted, most_ahead=9, alone=True)
            assert isinstance(found, JobWindow)
            assert (found.total, found.elsewhere) == (1, 3)
            assert found.found == (words in ((), ("mine",))) == len(found.jobs)
