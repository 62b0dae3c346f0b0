# SPDX-License-Identifier: Apache-2.0
"""The thread that writes looks for work at once, so that tests need not wait for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dovetail.recording import recorder


@pytest.fixture(autouse=True, scope="module")
def short_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recorder, "_PAUSE_S", 0.001)
        yield
