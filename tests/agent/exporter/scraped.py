# SPDX-License-Identifier: Apache-2.0
"""The answer to a scrape, read. Prometheus' own client library reads the labels, which takes a third of a millisecond,
and each set of them once: in an answer all metrics of a GPU have the same, and so have the answers after it."""

from __future__ import annotations

from functools import lru_cache

from prometheus_client.parser import text_string_to_metric_families

Series = dict[str, list[tuple[dict[str, str], float]]]
"""By metric, the labels and values of its samples."""


def series_of(text: str) -> Series:
    """The samples of an answer, none of which has a time. Counters end in _total, as the library names them."""
    found: Series = {}
    ending = ""
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            ending = "_total" if line.endswith(" counter") else ""
        elif not line.startswith("#"):
            head, _, value = line.rpartition(" ")
            name, brace, labels = head.partition("{")
            named = name.removesuffix(ending) + ending
            found.setdefault(named, []).append((dict(_labels(brace + labels)), float(value)))
    return found


@lru_cache(maxsize=4096)
def _labels(text: str) -> dict[str, str]:
    (family,) = text_string_to_metric_families(f"x{text} 0")
    return family.samples[0].labels  # type: ignore[no-any-return]
