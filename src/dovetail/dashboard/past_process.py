# SPDX-License-Identifier: Apache-2.0
"""The process that works out answers from a history that this machine reads itself: a file, or a Prometheus.

Rules
- The first line of its input is the history, each further one a question. A reply is a line with its status and length,
  then its body. The process ends with its input.
- Sums over a month of a large cluster take long and much memory: so they keep no page waiting, and go with the process.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from dovetail.aggregated.question import Question
from dovetail.core.json_text import decode_json
from dovetail.cost.price_sources import PriceSources
from dovetail.history.prometheus.reader import PrometheusReader
from dovetail.history.sqlite.reader import SqliteReader
from dovetail.historyserver.server import answered_from
from dovetail.kube.reading.prometheus_api import PrometheusAccess


class ReadHistory(Struct, frozen=True):
    """A history, in the file `store`, or in a Prometheus, of which series with `matchers` are read; and prices."""

    store: str = ""
    prometheus: PrometheusAccess | None = None
    matchers: str = ""
    prices: PriceSources = PriceSources()

    @property
    def name(self) -> str:
        return f"Prometheus at {self.prometheus.shown}" if self.prometheus is not None else self.store

    def opened(self) -> SqliteReader | PrometheusReader:
        """Raises StoreError."""
        if self.prometheus is not None:
            return PrometheusReader(self.prometheus, self.matchers)
        return SqliteReader(Path(self.store))


def answer_all(questions: BinaryIO, replies: BinaryIO) -> None:
    """Answer until the input ends."""
    history = decode_json(questions.readline(), ReadHistory)
    for line in questions:
        reply = answered_from(history.opened, history.prices, decode_json(line, Question))
        replies.write(b"%d %d\n" % (reply.status, len(reply.body)) + reply.body)
        replies.flush()


if __name__ == "__main__":
    answer_all(sys.stdin.buffer, sys.stdout.buffer)
