# SPDX-License-Identifier: Apache-2.0
"""The quarantine budget as text, as `dovetail scheduler` takes it and its lease has it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.policy import Policy
from dovetail.kube.translate.quarantine_budget import budget_of, with_budget


@given(st.integers(0, 999_999).map(str) | st.integers(1, 100).map("{}%".format))
def test_a_budget_is_read_back_as_it_was_written(text: str) -> None:
    assert budget_of(with_budget(Policy(), text)) == text


@pytest.mark.parametrize("text", ["", "%", "-1", "101%", "1.5", "ten", "1000000", "٣", "10 %"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither a number"):
        with_budget(Policy(), text)


def test_no_part_of_the_nodes_is_none() -> None:
    assert budget_of(with_budget(Policy(), "0%")) == "0"
