# SPDX-License-Identifier: Apache-2.0
"""A folder that cannot be listed, whatever rights the tests have."""

from __future__ import annotations

import os
from pathlib import Path


def too_deep(folder: Path) -> Path:
    """A folder below this one whose path is longer than paths may be."""
    here = os.open(folder, os.O_RDONLY)
    while len(str(folder)) < 4096:
        os.mkdir("d" * 250, dir_fd=here)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here, folder = below, folder / ("d" * 250)
    os.close(here)
    return folder
