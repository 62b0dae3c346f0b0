# SPDX-License-Identifier: Apache-2.0
"""How many random worlds tests try. `DOVETAIL_BREADTH=4` is four times as many, also of hypothesis' examples."""

import os

BREADTH = int(os.environ.get("DOVETAIL_BREADTH", "1"))


def seeds(count: int) -> range:
    """The first seeds, so many."""
    return range(count * BREADTH)
