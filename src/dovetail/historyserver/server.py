# SPDX-License-Identifier: Apache-2.0
"""The API history.dovetail.dev: each question is worked out by a process of its own, from the file as it is then.

Rules
- One is worked out at a time (`aggregated.turns`); its time and its memory are bounded. The collector writes on
  meanwhile: a reader of the file keeps no writer out.
- This process never opens the file itself: SQLite must not be open where a process is forked.
- An answer has at most MOST_ROWS groups, so that reply and memory stay small however many jobs there were.
- On a path of a namespace the answer has the names of that namespace alone.
- Prices are read again for each question, so that a change of their files counts at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from dovetail import __version__
from dovetail.advice.price_table import PriceError
from dovetail.aggregated.forked import Answer, Forked, ProcessEnded
from dovetail.aggregated.front_proxy import FrontProxy
from dovetail.aggregated.paths import ServedApi
from dovetail.aggregated.priority import ONE_QUESTION
from dovetail.aggregated.question import BadQuestion, Question, Reply
from dovetail.aggregated.serving import AggregatedServer
from dovetail.aggregated.turns import Turns
from dovetail.core.json_text import JsonError, decode_json
from dovetail.cost.price_rules import CurrencyError, PriceBook
from dovetail.cost.price_sources import PriceSources
from dovetail.history.prometheus.reader import PrometheusReader
from dovetail.history.sqlite.reader import SqliteReader
from dovetail.history.store import HistoryReader, StoreError
from dovetail.historyserver.answers import advice_of, capacity_of, costs_of, focus_of, idle_of, use_of
from dovetail.historyserver.past_jobs import past_jobs_of
from dovetail.historyserver.questions import MOST_ROWS, RESOURCES, NoSuchJob, QuestionError, UseQuestion
from dovetail.kube.objects.history import (
    CAPACITY_ADVICE,
    COSTS,
    FOCUS_COSTS,
    HISTORIES,
    HISTORY_GROUP,
    HISTORY_VERSION,
    IDLE_LISTS,
    LONGEST_QUESTION,
    PAST_JOBS,
    QUESTION,
    SIZE_ADVICE,
    USE_REPORTS,
)
from dovetail.kube.objects.views import ViewDocument, ViewMeta

A_MINUTE, MOST_WAITING = 30, 16
TIME_S, WAIT_S = 45.0, 10.0
"""A month of a large cluster takes long on a busy machine."""
MOST_BYTES = 1 << 30
"""The memory that a question may take."""
_RESOURCES = {one.plural: one for one in HISTORIES}
_KINDS = {resource.plural: kind for kind, resource in RESOURCES.items()}
API = ServedApi(
    HISTORY_GROUP, HISTORY_VERSION, _RESOURCES, dict.fromkeys(_RESOURCES, frozenset({QUESTION})),
    longest_value=LONGEST_QUESTION,
)  # fmt: skip
_WORK: dict[str, Callable[[HistoryReader, Any, PriceBook, str], object]] = {
    PAST_JOBS.plural: lambda reader, asked, book, own: past_jobs_of(reader, asked, own),
    USE_REPORTS.plural: lambda reader, asked, book, own: use_of(reader, asked, own),
    COSTS.plural: costs_of,
    FOCUS_COSTS.plural: focus_of,
    IDLE_LISTS.plural: idle_of,
    SIZE_ADVICE.plural: advice_of,
    CAPACITY_ADVICE.plural: capacity_of,
}


class HistoryServer(AggregatedServer):
    """Answers from the file `store`."""

    def __init__(self, front_proxy: FrontProxy, store: Path, prices: PriceSources) -> None:
        super().__init__(API, front_proxy)
        self._store, self._prices = store, prices
        self._turns = Turns("question", A_MINUTE, MOST_WAITING, TIME_S, WAIT_S)

    async def ask(self, question: Question, user: str, request: web.BaseRequest) -> Reply:
        """The reply to a question. Raises BadQuestion."""
        return await self._turns.take(user, lambda: self._worked_out(question))

    async def _worked_out(self, question: Question) -> Reply:
        time_s = self._turns.time_s
        try:
            process = await Forked.start(partial(_begin, self._store, self._prices), ONE_QUESTION, MOST_BYTES)
        except OSError as error:
            raise BadQuestion(503, f"no process can be started: {error}") from error
        try:
            await process.prepared(time_s)
            return await process.reply(msgspec.json.encode(question), time_s)
        except ProcessEnded as error:
            raise BadQuestion(
                503, "the process ended before it answered: ask for a shorter period, or see the log of the collector"
            ) from error
        finally:
            process.end()


def _begin(store: Path, prices: PriceSources) -> Answer:
    return lambda payload: answered(store, prices, decode_json(payload, Question))


def answered(store: Path, prices: PriceSources, question: Question) -> Reply:
    """The reply from the file. Raises no error for a question that has none."""
    return answered_from(lambda: SqliteReader(store), prices, question)


def answered_from(
    opened: Callable[[], SqliteReader | PrometheusReader], prices: PriceSources, question: Question
) -> Reply:
    """The reply from what `opened` opens. Raises no error for a question that has none."""
    resource = _RESOURCES[question.resource]
    try:
        asked = decode_json(dict(question.query).get(QUESTION, "{}"), _KINDS[question.resource])
    except JsonError as error:
        return Reply(400, f"the question is none that this collector ({__version__}) knows: {error}".encode())
    if isinstance(asked, UseQuestion) and asked.limit > MOST_ROWS:
        fix = "name a lower --limit, or read a file or a Prometheus (--store, --prometheus)"
        return Reply(400, f"the collector answers with at most {MOST_ROWS} rows: {fix}".encode())
    try:
        book = prices.book(lambda file: Path(file).read_text(encoding="utf-8-sig"))
        with closing(opened()) as reader:
            answer = _WORK[question.resource](reader, asked, book, question.namespace)
    except NoSuchJob as error:
        return Reply(404, str(error).encode())
    except QuestionError as error:
        return Reply(400, str(error).encode())
    except (PriceError, CurrencyError, OSError, UnicodeDecodeError) as error:
        return Reply(500, f"the prices of the collector: {error}".encode())
    except StoreError as error:
        return Reply(503, f"the history cannot be read: {error}".encode())
    document = ViewDocument(
        resource.api_version, resource.kind, ViewMeta("", question.namespace), time.time_ns() // 1_000_000, 0,
        __version__, msgspec.Raw(msgspec.json.encode(answer)),
    )  # fmt: skip
    return Reply(200, msgspec.json.encode(document))
