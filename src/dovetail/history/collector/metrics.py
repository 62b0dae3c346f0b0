# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics of the collector. docs/reference/history.md lists all of them."""

from __future__ import annotations

import logging

from prometheus_client import Counter, Gauge

from dovetail.history.agent_use import AgentUseReader

log = logging.getLogger("dovetail.collector")

WRITTEN = Counter("dovetail_history_records_total", "Records that were written, by kind", ["kind"])
WRITES = Counter("dovetail_history_writes_total", "Batches that were written, or failed", ["result"])
UNWRITTEN = Gauge("dovetail_history_unwritten_records", "Records that wait to be written")
UNTIL = Gauge("dovetail_history_known_until_seconds", "The time up to which all is written, as epoch seconds")
GAPS = Counter("dovetail_history_gaps_total", "Gaps that were recorded: restarts, standstills, clocks that went back")
DRIFT = Counter("dovetail_history_watch_drift_total", "Audits that found a difference to the server", ["resource"])
USE_FAULTS = Gauge("dovetail_history_agents_unread", "Nodes whose agent did not answer the last question for use")
USE_REFUSED = Gauge("dovetail_history_use_refused_records", "Records of use of GPUs or pods of other nodes")
SERVER_UP = Gauge("dovetail_history_server_up", "1 while the process that answers questions runs")
SERVER_ENDS = Counter("dovetail_history_server_ends_total", "Times that the process that answers questions ended")
PUBLICATIONS = Counter("dovetail_history_publications_total", "Times that /history was made, or failed", ["result"])
PUBLISHED = Gauge("dovetail_history_published_series", "Series at /history")
PUBLISHED_BYTES = Gauge("dovetail_history_published_bytes", "The size of /history")
PUBLISHED_UNTIL = Gauge("dovetail_history_published_until_seconds", "The end of /history, as epoch seconds")
OWNER_ERRORS = Counter("dovetail_history_owner_errors_total", "Owners of pods that could not be read")


def show_use(reader: AgentUseReader) -> None:
    """Show what the reader could not read, whenever the metrics are asked for."""
    USE_FAULTS.set_function(lambda: len(reader.faults))
    USE_REFUSED.set_function(lambda: sum(reader.refused.values()))
