# SPDX-License-Identifier: Apache-2.0
"""The files of the pages."""

from __future__ import annotations

import re

from dovetail.dashboard.assets import read_assets

_IMPORT = re.compile(r'^(?:import|export)[^;]*?"/assets/([^"]+)"', re.M)


def test_the_first_answer_names_every_module_so_that_none_is_found_only_by_reading_another() -> None:
    assets = {name: asset.content.decode() for name, asset in read_assets().items()}
    needed: set[str] = set()
    left = ["main.js"]
    while left:
        found = set(_IMPORT.findall(assets[left.pop()])) - needed
        needed |= found
        left += found
    named = re.findall(r'<link rel="modulepreload" href="/assets/([^"]+)">', assets["index.html"])
    assert sorted(named) == sorted(needed)
    assert len(needed) > 20
