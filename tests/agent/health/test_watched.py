# SPDX-License-Identifier: Apache-2.0
"""Which errors count: the variables of NVIDIA's device plugin, and the administrator's table of actions."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.agent.health.watched import WatchedError, watched
from dovetail.agent.health.xids import read


@pytest.mark.parametrize(
    ("variables", "counting", "ignored"),
    [
        ({}, {48, 63, 999}, {13, 31, 43, 45, 68, 109}),
        ({"DP_DISABLE_HEALTHCHECKS": "48, 74"}, {95}, {48, 74, 13}),
        ({"DP_ENABLE_HEALTHCHECKS": "109"}, {48, 109}, {13}),
        ({"DP_DISABLE_HEALTHCHECKS": "xids"}, set(), {48, 79, 13}),
        ({"DP_DISABLE_HEALTHCHECKS": "XIDs", "DP_ENABLE_HEALTHCHECKS": "79"}, {79}, {48}),
        ({"DP_DISABLE_HEALTHCHECKS": "all", "DP_ENABLE_HEALTHCHECKS": "79"}, {79}, {48}),
        ({"DP_DISABLE_HEALTHCHECKS": "48", "DP_ENABLE_HEALTHCHECKS": "48"}, {48}, {13}),
        ({"DP_ENABLE_HEALTHCHECKS": "all"}, {13, 48}, set()),
    ],
)
def test_the_variables_of_nvidia_s_plugin(variables: dict[str, str], counting: set[int], ignored: set[int]) -> None:
    read = watched(variables)
    assert not read.none
    assert {xid for xid in counting | ignored if read.counts(xid)} == counting


def test_a_variable_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(WatchedError, match=r"DP_DISABLE_HEALTHCHECKS: 'xid48' is neither the number of an XID"):
        watched({"DP_DISABLE_HEALTHCHECKS": "48,xid48"})


def test_the_table_counts_before_the_ignored_xids_and_after_the_variables(tmp_path: Path) -> None:
    file = tmp_path / "actions.csv"
    file.write_text("31,quarantine-gpu\n48,note\n95,restart-application\n")
    table = read(file)
    assert watched({}, table).makes_unhealthy(31) and not watched({}, table).makes_unhealthy(13)
    assert not watched({}, table).makes_unhealthy(48) and watched({}).makes_unhealthy(48)
    assert not watched({"DP_DISABLE_HEALTHCHECKS": "31"}, table).makes_unhealthy(31)
    assert watched({"DP_ENABLE_HEALTHCHECKS": "48"}, table).makes_unhealthy(48)
    assert not watched({"DP_DISABLE_HEALTHCHECKS": "xids"}, table).makes_unhealthy(31)
