# SPDX-License-Identifier: Apache-2.0
"""Where a command reads the history: from a file, from a Prometheus, or of the collector of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct
from msgspec.structs import replace

from dovetail.cli.cluster import run
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.prometheus import access_of, authority_option, tenant_option, token_option

if TYPE_CHECKING:
    from dovetail.cost.price_sources import PriceSources
    from dovetail.history.prometheus.reader import PrometheusReader
    from dovetail.history.sqlite.reader import SqliteReader
    from dovetail.history.store import HistoryReader
    from dovetail.historyserver.questions import HistoryAsked
    from dovetail.kube.api.config import ClusterConfig
    from dovetail.kube.reading.prometheus_api import PrometheusAccess

T = TypeVar("T")
_NO_COLLECTOR = "the history of a cluster is answered where the GPUStack has spec.history.enabled; --store reads a file"


class HistorySource(Struct, frozen=True):
    """A file, a Prometheus with `matchers`, or the collector of a cluster. `own`: as users of this namespace see it.
    `namespace` is asked for where the asker may not see all; "" is that of the context."""

    store: Path | None
    config: ClusterConfig | None
    own: str = ""
    namespace: str = ""
    prometheus: PrometheusAccess | None = None
    matchers: str = ""

    @property
    def asks(self) -> bool:
        """Whether the collector is asked: answers are not worked out here."""
        return self.store is None and self.prometheus is None

    @property
    def name(self) -> str:
        if self.prometheus is not None:
            return f"Prometheus at {self.prometheus.shown}"
        return str(self.store) if self.store is not None else "the history of the cluster"

    def answer(self, question: HistoryAsked, kind: type[T], worked_out: Callable[[HistoryReader], T]) -> T:
        """The answer: worked out here, or the collector's. Raises ClickException."""
        if self.asks:
            return self._ask(question, kind)
        with self.opened("") as reader:
            return worked_out(reader)

    @contextmanager
    def opened(self, why: str) -> Iterator[HistoryReader]:
        """The history, where it is worked out here. Raises ClickException, also for what goes wrong while it is read;
        UsageError where the collector would be asked."""
        from dovetail.history.store import StoreError

        if self.asks:
            raise click.UsageError(f"{why} needs --store or --prometheus: it is worked out from the history itself")
        try:
            with reported(), closing(self._reader()) as reader:
                yield reader
        except StoreError as error:
            raise click.ClickException(str(error)) from error

    def _reader(self) -> SqliteReader | PrometheusReader:
        """Raises StoreError."""
        from dovetail.history.prometheus.reader import PrometheusReader
        from dovetail.history.sqlite.reader import SqliteReader

        if self.prometheus is not None:
            return PrometheusReader(self.prometheus, self.matchers)
        assert self.store is not None
        return SqliteReader(self.store)

    def check_prices(self, prices: PriceSources) -> None:
        """Raise UsageError for prices beside those of the collector."""
        from dovetail.cost.price_sources import PriceSources

        if self.asks and prices != PriceSources():
            raise click.UsageError(
                "options of prices need --store or --prometheus: the collector has the prices of the cluster "
                "(spec.history.prices)"
            )

    def _ask(self, question: HistoryAsked, kind: type[T]) -> T:
        import msgspec

        from dovetail.core.json_text import JsonError, decode_json
        from dovetail.historyserver.questions import RESOURCES
        from dovetail.kube.objects.history import LONGEST_QUESTION, QUESTION
        from dovetail.kube.reading.views import NoSuchObject, NotServed, NoView, ViewRequest, read_view

        assert self.config is not None
        text = msgspec.json.encode(question).decode()
        if len(text) > LONGEST_QUESTION:
            raise click.ClickException(f"the question is longer than {LONGEST_QUESTION} characters: name fewer things")
        namespace = self.own or self.namespace or self.config.namespace
        request = ViewRequest(RESOURCES[type(question)], namespace, query={QUESTION: text}, alone=bool(self.own))
        try:
            return decode_json(run(read_view(self.config, request), self.config.server, small=True).answer, kind)
        except NotServed as error:
            raise click.ClickException(f"{error}: {_NO_COLLECTOR}") from error
        except (NoSuchObject, NoView) as error:
            raise click.ClickException(str(error)) from error
        except JsonError as error:
            raise click.ClickException(f"the collector is of another version than this command: {error}") from error


def source_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options; the command gets a `source` in their place."""

    @wraps(command)
    def sourced(past: HistorySource, kubeconfig: str | None, context: str | None, **rest: Any) -> None:
        if past.asks:
            try:
                past = replace(past, config=config_of(kubeconfig, context))
            except click.ClickException as error:
                raise click.ClickException(f"{error.message}; --store reads a file") from error
        else:
            read = "--store" if past.store is not None else "--prometheus"
            for option, value in (("--kubeconfig", kubeconfig), ("--context", context)):
                if value:
                    raise click.UsageError(_twice(read, option))
        command(source=past, **rest)

    return past_options(kubeconfig_options(sourced))


def past_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a history that is read here, for commands that choose their cluster by others; the command gets a
    `past` in their place, which has no cluster."""

    @wraps(command)
    def chosen(store: Path | None, prometheus: str, matchers: str, **rest: Any) -> None:
        login = {name: rest.pop(name) for name in ("token", "authority", "tenant")}
        if store is not None and prometheus:
            raise click.UsageError(_twice("--store", "--prometheus"))
        if matchers and not prometheus:
            raise click.UsageError("--prometheus-match goes with --prometheus")
        access = access_of(prometheus, **login) if prometheus else None
        command(past=HistorySource(store, None, prometheus=access, matchers=matchers), **rest)

    found: Callable[..., None] = chosen
    for option in reversed(_OPTIONS):
        found = option(found)
    return found


def _twice(first: str, second: str) -> str:
    return f"{first} and {second} both choose the history: use one of them"


def _matchers(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Raises BadParameter."""
    from dovetail.history.prometheus.matchers import is_matchers

    if value and not is_matchers(value):
        raise click.BadParameter(f"""{value!r} is not matchers such as 'cluster="eu",job=~"dove.*"'""")
    return value


_OPTIONS = (
    click.option(
        "--store", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
        help="Read the history from this file, which `dovetail collector` or `simulate --history` writes; without it "
        "the collector of the cluster is asked.",
    ),
    click.option(
        "--prometheus", metavar="URL", default="",
        help="Read the history from this Prometheus, or a server with its API, which scrapes /history of a collector.",
    ),
    token_option,
    authority_option,
    tenant_option,
    click.option(
        "--prometheus-match", "matchers", metavar="MATCHERS", default="", callback=_matchers,
        help="Read only series with these labels, where several clusters are in it: cluster=\"eu\",job=\"dovetail\".",
    ),
)  # fmt: skip


@contextmanager
def reported() -> Iterator[None]:
    """What cannot be worked out of a file, as ClickException."""
    from dovetail.cost.price_rules import CurrencyError
    from dovetail.historyserver.questions import NoSuchJob, QuestionError

    try:
        yield
    except (NoSuchJob, CurrencyError) as error:
        raise click.ClickException(str(error)) from error
    except QuestionError as error:
        raise click.UsageError(str(error)) from error
