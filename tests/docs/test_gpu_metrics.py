# SPDX-License-Identifier: Apache-2.0
"""The reference page of the GPUs' metrics, held against the table that makes it."""

from __future__ import annotations

from tests.paths import ROOT
from tools import gpu_metrics


def test_the_page_is_made_of_the_table() -> None:
    assert (ROOT / "docs/reference/gpu-metrics.md").read_text() == gpu_metrics.page(), (
        "python -m tools.gpu_metrics makes it"
    )
