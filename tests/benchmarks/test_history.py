# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the history: what it writes is what it answers, from sums of days and from the records."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import history
from dovetail.cost.price_rules import PriceBook


@pytest.mark.parametrize("sampled_hours", [0, 1])
@pytest.mark.slow
def test_all_of_the_time_is_in_the_answers(tmp_path: Path, sampled_hours: int) -> None:
    path, options = tmp_path / "history.db", Namespace(nodes=4, days=3, apart=600, sampled_hours=sampled_hours)
    written = history.write(path, options)
    assert written["holds"] > 20 and ("ingest_core_percent" in written) == (sampled_hours > 0)
    assert history.add_up(path, options)["sums_days"] == 2
    reader, records = history.ANSWERS["cost"][0], history.ANSWERS["records_cost"][0]
    found = history.answer(path, reader, PriceBook([history.PRICES]))
    assert found == history.answer(path, records, PriceBook([history.PRICES]))
    assert found.total.allocated_gpu_s + found.total.unallocated_gpu_s == 4 * history.GPUS * 3 * 24 * 3600
    assert history.timed(path, "report")["report_rows"] == len(found.rows)
    assert history.timed(path, "cost_by_job")["cost_by_job_rows"] == written["pods"] + 1
