# SPDX-License-Identifier: Apache-2.0
"""The bound of numbers in questions."""

from __future__ import annotations

MOST_ASKED = 2**50
"""The largest number in a question to a running scheduler."""
