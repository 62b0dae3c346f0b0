# SPDX-License-Identifier: Apache-2.0
"""Names of GPU products: what is right is left alone, and what is spelt otherwise leads back to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.advice import gpus
from dovetail.advice.lint.rules.products import meant
from dovetail.core.devices.products import PRODUCTS

_NAMES = sorted({*(gpu.name for gpu in gpus.GPUS), *(name for one in PRODUCTS for name in one.names)})
_SUFFIXES = ("", "-SHARED", "-MIG-1g.10gb")


@given(st.sampled_from(_NAMES), st.sampled_from(_SUFFIXES), st.booleans())
def test_right_names_are_left_alone(name: str, suffix: str, seen: bool) -> None:
    assert meant(name + suffix, [name + suffix] if seen else []) == ((), False)


@given(st.sampled_from(_NAMES), st.sampled_from(_SUFFIXES), st.data())
@pytest.mark.slow
def test_other_spellings_lead_back(name: str, suffix: str, data: st.DataObject) -> None:
    letters = [data.draw(st.sampled_from((letter.lower(), letter.upper()))) for letter in name]
    spelt = "".join(letters).replace("-", data.draw(st.sampled_from("-_ ")))
    if spelt in _NAMES or f"NVIDIA-{spelt}" in _NAMES:
        return
    found, sure = meant(spelt + suffix, [])
    assert name + suffix in found
    assert sure == (len(found) == 1)


@given(st.sampled_from(_NAMES), st.sampled_from(_NAMES))
def test_with_nodes_only_what_they_have_is_offered(wanted: str, there: str) -> None:
    found, sure = meant(wanted, [f"{there}-SHARED"])
    assert (found == (f"{there}-SHARED",)) == sure == (wanted == there)
