# SPDX-License-Identifier: Apache-2.0
"""Where a command reads the history: from a file, or of the collector of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from dovetail.cli.cluster import run
from dovetail.cli.kubeconfig import config_of, kubeconfig_options

if TYPE_CHECKING:
    from dovetail.cost.price_sources import PriceSources
    from dovetail.history.sqlite.reader import SqliteReader
    from dovetail.historyserver.questions import HistoryAsked
    from dovetail.kube.api.config import ClusterConfig

T = TypeVar("T")
_NO_COLLECTOR = "the history of a cluster is answered where the GPUStack has spec.history.enabled; --store reads a file"


class HistorySource(Struct, frozen=True):
    """A file, or the collector of a cluster. `own`: as users of this namespace see it. `namespace` is asked for where
    the asker may not see all; "" is that of the context."""

    store: Path | None
    config: ClusterConfig | None
    own: str = ""
    namespace: str = ""

    @property
    def name(self) -> str:
        return str(self.store) if self.store is not None else "the history of the cluster"

    def answer(self, question: HistoryAsked, kind: type[T], worked_out: Callable[[SqliteReader], T]) -> T:
        """The answer: worked out from the file, or the collector's. Raises ClickException."""
        if self.store is not None:
            with reported(), opened(self.store) as reader:
                return worked_out(reader)
        return self._ask(question, kind)

    def opened_file(self, why: str) -> Path:
        """The file, where only that will do. Raises UsageError."""
        if self.store is None:
            raise click.UsageError(f"{why} needs --store: it is worked out from the file of the history")
        return self.store

    def check_prices(self, prices: PriceSources) -> None:
        """Raise UsageError for prices beside those of the collector."""
        from dovetail.cost.price_sources import PriceSources

        if self.store is None and prices != PriceSources():
            raise click.UsageError(
                "options of prices need --store: the collector has the prices of the cluster (spec.history.prices)"
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
            return decode_json(run(read_view(self.config, request), self.config.server).answer, kind)
        except NotServed as error:
            raise click.ClickException(f"{error}: {_NO_COLLECTOR}") from error
        except (NoSuchObject, NoView) as error:
            raise click.ClickException(str(error)) from error
        except JsonError as error:
            raise click.ClickException(f"the collector is of another version than this command: {error}") from error


def source_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options; the command gets a `source` in their place."""

    @wraps(command)
    def sourced(store: Path | None, kubeconfig: str | None, context: str | None, **rest: Any) -> None:
        if store is not None:
            for option, value in (("--kubeconfig", kubeconfig), ("--context", context)):
                if value is not None:
                    raise click.UsageError(f"--store and {option} both choose the history: use one of them")
        try:
            config = config_of(kubeconfig, context) if store is None else None
        except click.ClickException as error:
            raise click.ClickException(f"{error.message}; --store reads a file") from error
        command(source=HistorySource(store, config), **rest)

    return _store_option(kubeconfig_options(sourced))


_store_option = click.option(
    "--store", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Read the history from this file, which `dovetail collector` or `simulate --history` writes; without it the "
    "collector of the cluster is asked.",
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


@contextmanager
def opened(store: Path) -> Iterator[SqliteReader]:
    """The history in the file. Raises ClickException, also for what goes wrong while it is read."""
    from dovetail.history.sqlite.reader import SqliteReader
    from dovetail.history.store import StoreError

    try:
        reader = SqliteReader(store)
        try:
            yield reader
        finally:
            reader.close()
    except StoreError as error:
        raise click.ClickException(str(error)) from error
