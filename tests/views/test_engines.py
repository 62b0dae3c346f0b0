# SPDX-License-Identifier: Apache-2.0
"""The load of engines from samples."""

from __future__ import annotations

from dovetail.kube.reading.engines import EngineSample
from dovetail.views.engines import loads_of, sentences


def test_values_have_the_units_that_people_read_and_what_is_missing_is_named() -> None:
    (load,) = loads_of([EngineSample("serving", "llama-0", "SGLang", "m", running=2, growth=0.05, cache=0.333)])
    assert (load.name, load.growth_per_min, load.cache_percent) == ("serving/llama-0", 3.0, 33.3)
    assert load.missing == ("waiting",)


def test_a_replica_that_lost_its_metrics_is_found() -> None:
    (load,) = loads_of([EngineSample("", "10.0.0.1:8000", lost=True)])
    assert (load.name, [one.name for one in load.findings]) == ("10.0.0.1:8000", ["no metrics"])


def test_many_findings_are_counted() -> None:
    loads = loads_of(EngineSample("s", f"r-{i}", "vLLM", cache=1.0) for i in range(20))
    texts = sentences(loads)
    assert len(texts) == 9 and texts[-1] == "and 12 more replicas with findings"
