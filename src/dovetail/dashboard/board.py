# SPDX-License-Identifier: Apache-2.0
"""The pages that somebody has open. Each is asked for once per change, however many viewers it has.

Rules
- While nobody has a page open, nothing is asked. While somebody has, a small question each PROBED_S finds out whether
  there is something new, or the source itself reports it.
- Pages about the past are of another source, and are looked after beside the others: they take long.
- Pages of one moment share their answers. On average they take a PART of one core: what was not taken before is
  kept, up to MOST_CREDIT_S, so that a change after a pause is there at once.
- Users share the time fairly (`fair_turns`): however much one has open, the pages of others are asked for meanwhile.
- An answer that takes longer than QUICK_S, and that a page asks for `seldom`, waits: the page is shown with the one
  that was there before, and again with the new one. It is asked for no faster than that it takes a SELDOM_PART of the
  time.
- The first page of a viewer is without such an answer, and is made again with it.
- A page that is not answered stays as it is; `silences` has why, and since when. The others go on.
- MOST pages are kept: for a further one that is forgotten which was not read for longest. Pages of viewers stay; where
  there are no others none is opened. The same of windows, of which MOST_WINDOWS are kept: their rows take memory.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct

from dovetail.core.json_text import JsonError, decode_json
from dovetail.dashboard.fair_turns import FairTurns
from dovetail.dashboard.page_types import NotYet
from dovetail.dashboard.pages import OF_OBJECT, OF_WINDOW, PAGES
from dovetail.dashboard.past_pages import OF_PAST, PAST_PAGES
from dovetail.dashboard.past_sources import NoHistory
from dovetail.dashboard.sheets import Sheet
from dovetail.dashboard.sources import PredictingSource, SourceAway, ViewSource
from dovetail.kube.api.resources import Resource
from dovetail.kube.objects.views import ViewDocument
from dovetail.kube.reading.views import NoSuchObject, ViewRequest

T = TypeVar("T")
PROBED_S = 0.5
PAST_RETRY_S = 15.0
"""After a question about the past that was not answered: such a question costs much, and its answers change rarely."""
PART, SELDOM_PART = 0.2, 0.05
MOST_CREDIT_S = 2.0
QUICK_S = 0.1
MOST, MOST_WINDOWS = 512, 96
_Answers = dict[tuple[str, str, tuple[tuple[str, str], ...]], ViewDocument]
"""By resource, name and query."""
_NO_QUERY: Mapping[str, str] = {}
_ALONE, _NAMED = {**PAGES, **PAST_PAGES}, {**OF_OBJECT, **OF_PAST, **OF_WINDOW}
_log = logging.getLogger(__name__)


class Topic(Struct, frozen=True, order=True):
    """A page, of a job or a node where it is about one, for users that may see `namespace` ("": all)."""

    page: str
    name: str = ""
    namespace: str = ""

    @property
    def is_window(self) -> bool:
        """Whether it is a part of a page for those that have it before them."""
        return bool(self.name) and self.page in OF_WINDOW

    @property
    def path(self) -> str:
        return f"{self.page}/{self.name}" if self.name else self.page


class Unanswered(Struct, frozen=True):
    """A page is not answered since this time."""

    why: str
    since_ms: int


class TooManyPages(Exception):
    """No further page can be opened."""


class _Open:
    """A page that is kept: its sheet, and the moment of the sheet."""

    def __init__(self) -> None:
        self.sheet: Sheet | None = None
        self.moment = ""
        self.again_s = 0.0
        """When an answer in it that is older has to be asked for again; 0 if there is none."""
        self.silence: Unanswered | None = None
        self.retry_s = 0.0
        """Before this time a page that was not answered is not asked for again."""
        self.making = asyncio.Lock()


class _Kept(Struct, frozen=True):
    """An answer that took long, and the time from which on it may be asked for again."""

    document: ViewDocument
    due_s: float


class _Slow:
    """The answers that take long, by namespace, resource, name and query; and the CPU time that they took."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str, str, tuple[tuple[str, str], ...]], _Kept] = {}
        self.cpu_s = 0.0

    def took(
        self, key: tuple[str, str, str, tuple[tuple[str, str], ...]], document: ViewDocument, took_s: float
    ) -> None:
        self.kept.pop(key, None)
        if took_s < QUICK_S:
            return
        while len(self.kept) >= MOST:
            del self.kept[next(iter(self.kept))]
        self.kept[key] = _Kept(document, time.monotonic() + took_s * (1 / SELDOM_PART - 1))


class Pace:
    """How long to rest, so that the work takes a PART of one core on average."""

    def __init__(self, now_s: float) -> None:
        self._credit_s, self._then_s = MOST_CREDIT_S, now_s

    def rest_s(self, used_s: float, now_s: float) -> float:
        """After work that took so much CPU time."""
        self._credit_s = min(MOST_CREDIT_S, self._credit_s + PART * (now_s - self._then_s)) - used_s
        self._then_s = now_s
        return max(0.0, -self._credit_s / PART)


class PageBoard:
    """Of one source, and for the past of another. `fabric` are label keys, the widest first. `clock_ms` is the time
    that is shown."""

    def __init__(
        self,
        source: PredictingSource,
        fabric: Sequence[str],
        clock_ms: Callable[[], int],
        past: ViewSource | None = None,
    ) -> None:
        self.source = source
        self.past = past or NoHistory()
        self.closed = False
        self.id = secrets.token_hex(4)
        """Versions count from its beginning."""
        self._fabric = fabric
        self.clock_ms = clock_ms
        self._open: dict[Topic, _Open] = {}
        self._viewers: dict[Viewer, None] = {}
        self._answers: dict[tuple[ViewSource, str, str], _Answers] = {}
        self._slow = _Slow()
        self._turns = {one: FairTurns[Topic]() for one in (self.source, self.past)}
        self._paces = {one: Pace(time.monotonic()) for one in (self.source, self.past)}
        self._version = 0
        self._viewed = {one: asyncio.Event() for one in (self.source, self.past)}

    async def sheet(self, topic: Topic, *, soon: bool = False) -> Sheet:
        """The page, asked for now if nobody has it open; with `soon` and for the first time without what takes long.
        Raises SourceAway, TooManyPages."""
        kept = self._opened(topic)
        if kept.sheet is None or not self._watched(topic):
            try:
                moment = await self._moment(self._source_of(topic), topic.namespace)
                await self._renew(topic, kept, moment, soon=soon)
            except SourceAway:
                if kept.sheet is None:
                    raise
        assert kept.sheet is not None
        return kept.sheet

    def changed_since(self, topics: Iterable[Topic], version: int) -> list[tuple[Topic, int]]:
        """Of these pages those that changed after this version, each with its own."""
        sheets = ((topic, self._open[topic].sheet) for topic in topics if topic in self._open)
        return [(topic, one.version) for topic, one in sheets if one is not None and one.version > version]

    def silences(self, topics: Iterable[Topic]) -> dict[str, Unanswered]:
        """Of these pages those that are not answered, by path."""
        found = {topic.path: self._open[topic].silence for topic in topics if topic in self._open}
        return {path: one for path, one in found.items() if one is not None}

    def keep(self, topics: Iterable[Topic]) -> None:
        """Raises TooManyPages where there is no place for one of them."""
        for topic in topics:
            self._opened(topic)

    def add(self, viewer: Viewer) -> None:
        """Raises TooManyPages."""
        self.keep(viewer.topics)
        self._viewers[viewer] = None
        for viewed in self._viewed.values():
            viewed.set()

    def remove(self, viewer: Viewer) -> None:
        del self._viewers[viewer]

    def close(self) -> None:
        """End the streams of all viewers."""
        self.closed = True
        for viewer in self._viewers:
            viewer.heard.set()

    async def run(self) -> None:
        """Keep what is viewed up to date until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for source in self._viewed:
                tasks.create_task(self._follow(source))

    async def _follow(self, source: ViewSource) -> None:
        while True:
            await self._viewed[source].wait()
            wanted: dict[str, set[Topic]] = {}
            for viewer in self._viewers:
                if topics := {topic for topic in viewer.topics if self._source_of(topic) is source}:
                    wanted.setdefault(viewer.user, set()).update(topics)
            if not wanted:
                self._viewed[source].clear()
                continue
            began_s, slow_s = time.process_time(), self._slow.cpu_s
            await self._look(source, self._turns[source].turn(wanted))
            used_s = time.process_time() - began_s - (self._slow.cpu_s - slow_s)
            await asyncio.sleep(self._paces[source].rest_s(max(0.0, used_s), time.monotonic()))
            if self._turns[source].cut:
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(PROBED_S):
                    await source.changed.wait()
            source.changed.clear()

    async def _look(self, source: ViewSource, topics: Iterable[Topic]) -> None:
        """Ask again for what of these pages may have changed."""
        moments: dict[str, str] = {}
        for topic in topics:
            # While others were asked for its viewers may have gone, and it may have been forgotten.
            if not self._watched(topic):
                continue
            kept, why, began_s = self._open[topic], "", time.monotonic()
            if kept.silence is not None and began_s < kept.retry_s:
                continue
            try:
                if topic.namespace not in moments:
                    moments[topic.namespace] = await self._moment(source, topic.namespace)
                await self._renew(topic, kept, moments[topic.namespace], soon=True)
            except SourceAway as error:
                why = str(error)
                kept.retry_s = began_s + (PAST_RETRY_S if source is self.past else 0.0)
            if bool(why) != bool(kept.silence):
                _log.info("%s: %s: %s", source.name, topic.path, why or "it is answered again")
                kept.silence = Unanswered(why, self.clock_ms()) if why else None
                self._notify(topic)

    def _notify(self, topic: Topic) -> None:
        for viewer in self._viewers:
            if topic in viewer.topics:
                viewer.heard.set()

    def _source_of(self, topic: Topic) -> ViewSource:
        return self.past if topic.page in OF_PAST or topic.page in PAST_PAGES else self.source

    async def _moment(self, source: ViewSource, namespace: str) -> str:
        moment = await source.moment(namespace)
        if (source, namespace, moment) not in self._answers:
            for key in [key for key in self._answers if key[:2] == (source, namespace)]:
                del self._answers[key]
            while len(self._answers) >= MOST:
                del self._answers[next(iter(self._answers))]
            self._answers[source, namespace, moment] = {}
        return moment

    async def _renew(self, topic: Topic, kept: _Open, moment: str, *, soon: bool) -> None:
        """Raises SourceAway."""
        async with kept.making:
            due = 0 < kept.again_s <= time.monotonic()
            if kept.sheet is not None and kept.moment == moment and not due:
                return
            soon = soon and kept.sheet is None
            whole = not soon and (kept.sheet is None or due or not self._watched(topic))
            source = self._source_of(topic)
            known = self._answers.get((source, topic.namespace, moment), {})
            asking = _Asking(source, topic, known, self._slow, whole=whole, soon=soon)
            made = await self._made(topic, asking)
            kept.moment, kept.again_s = moment, asking.again_s
            if kept.sheet is None or made.compared != kept.sheet.compared:
                self._version += 1
                made.version = self._version
                kept.sheet = made
                self._notify(topic)

    async def _made(self, topic: Topic, asking: _Asking) -> Sheet:
        page = (_NAMED if topic.name else _ALONE)[topic.page]
        try:
            shown = await page(asking, self._fabric, topic.name)
        except NoSuchObject as error:
            return Sheet(0, self.clock_ms(), None, str(error), 404)
        except JsonError as error:
            raise SourceAway(f"the answer is that of another version of Dovetail: {error}") from error
        except SourceAway:
            raise
        except Exception as error:
            # One page that cannot be made must not end the others.
            _log.exception("%s cannot be shown", topic.path)
            raise SourceAway("it cannot be shown; the cause is in the log of the dashboard") from error
        return Sheet(0, asking.as_of_ms, shown)

    def _opened(self, topic: Topic) -> _Open:
        """The page, kept from now on. Raises TooManyPages."""
        kept = self._open.pop(topic, None)
        if kept is None:
            windows = [one for one in self._open if one.is_window] if topic.is_window else []
            for among, most in ((windows, MOST_WINDOWS), (self._open, MOST)):
                if len(among) >= most:
                    oldest = next((one for one in among if not self._watched(one)), None)
                    if oldest is None:
                        raise TooManyPages(f"{most} pages are open: try again later")
                    del self._open[oldest]
            kept = _Open()
        self._open[topic] = kept
        return kept

    def _watched(self, topic: Topic) -> bool:
        return any(topic in viewer.topics for viewer in self._viewers)


class Viewer:
    """Somebody that has these pages open, of a `user` by name or token. `heard` is set when one has changed, or is not
    answered any more or again."""

    def __init__(self, topics: frozenset[Topic], user: str = "") -> None:
        self.topics = topics
        self.user = user
        self.heard = asyncio.Event()


class _Asking:
    """Asks for one topic. `known` are the answers of this moment; `whole`: no older one counts; `soon`: what takes long
    is left out."""

    def __init__(
        self, source: ViewSource, topic: Topic, known: _Answers, slow: _Slow, *, whole: bool, soon: bool
    ) -> None:
        self.as_of_ms = 0
        self.again_s = 0.0
        self._slow = slow
        self._whole = whole
        self._soon = soon
        self._source = source
        self._topic = topic
        self._known = known

    async def __call__(
        self, resource: Resource, kind: type[T], query: Mapping[str, str] = _NO_QUERY, name: str = "",
        *, seldom: bool = False, shared: bool = True,
    ) -> T:  # fmt: skip
        own, (namespace, _, short) = self._topic.namespace, name.partition("/") if name else ("", "", "")
        if own and namespace not in ("", own):
            raise NoSuchObject(f"only names of namespace {own} are shown")
        key = resource.plural, name, tuple(sorted(query.items()))
        if key not in self._known:
            slow = self._slow.kept.get((own, *key)) if seldom else None
            if slow is not None and not self._whole:
                self.again_s = max(slow.due_s, time.monotonic())
                return decode_json(slow.document.answer, kind)
            if seldom and self._soon:
                self.again_s = time.monotonic()
                raise NotYet
            asked = ViewRequest(resource, namespace or own, short, query, alone=bool(own))
            began_s, cpu_s = time.monotonic(), time.process_time()
            found = await self._source.ask(asked)
            if not shared:
                self.as_of_ms = found.as_of_ms
                return decode_json(found.answer, kind)
            while len(self._known) >= MOST:
                del self._known[next(iter(self._known))]
            self._known[key] = found
            if seldom:
                self._slow.took((own, *key), self._known[key], time.monotonic() - began_s)
                self._slow.cpu_s += time.process_time() - cpu_s
        found = self._known[key]
        self.as_of_ms = found.as_of_ms
        return decode_json(found.answer, kind)
