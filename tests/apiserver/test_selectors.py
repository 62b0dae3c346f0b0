# SPDX-License-Identifier: Apache-2.0
"""Label selectors as texts."""

from hypothesis import given
from hypothesis import strategies as st

from dovetail.apiserver.failures import Failure
from dovetail.apiserver.selectors import parse_labels


@given(st.text(max_size=12))
def test_any_text_is_a_label_selector_or_refused(text: str) -> None:
    try:
        parse_labels(text)
    except Failure as failure:
        assert failure.code == 400
