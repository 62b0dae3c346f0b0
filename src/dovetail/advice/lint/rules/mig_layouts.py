# SPDX-License-Identifier: Apache-2.0
"""The rule about layouts of NVIDIA's MIG manager, in files and ConfigMaps: at least one GPU model must support each.

The GPU model of an entry is not checked, as one file serves many nodes. Entries with compute instances (`1c.3g.20gb`)
are not checked. Source of the format: https://github.com/NVIDIA/mig-parted: api/spec/v1.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

import yaml

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.rule import Facts, RuleMatch
from dovetail.core.devices.mig.geometry import Geometry, GeometryError
from dovetail.core.devices.mig.instances import counts_of, states
from dovetail.core.devices.mig.products import GEOMETRIES
from dovetail.kube.yaml_text import read_yaml

_LAYOUTS = "mig-configs"
_HOLDS_LAYOUTS = re.compile(rf"^{_LAYOUTS}:", re.MULTILINE)
_OUTCOME = "the MIG manager sets nvidia.com/mig.config.state to failed"


def impossible_layouts(whole: Field, _: Facts) -> Iterator[RuleMatch]:
    """The entries of layouts that no GPU supports."""
    for field, wrong in _faults(whole):
        yield RuleMatch(field, f"{wrong}; {_OUTCOME}")
    texts = whole.at("data").entries() if whole.at("kind").text == "ConfigMap" else ()
    for _name, text in texts:
        if not _HOLDS_LAYOUTS.search(text.text):
            continue
        try:
            inside = Field(read_yaml(text.text))
        except yaml.YAMLError as error:
            yield RuleMatch(text, f"is not YAML: {str(error).splitlines()[0]}; {_OUTCOME}")
            continue
        # A text has no fields, so the finding points at the whole text.
        for _field, wrong in _faults(inside):
            yield RuleMatch(text, f"{wrong}; {_OUTCOME}")


def _faults(config: Field) -> Iterator[tuple[Field, str]]:
    for name, layout in config.at(_LAYOUTS).entries():
        for entry in layout.each():
            devices = entry.at("mig-devices")
            if wrong := _wrong(devices):
                yield devices, f"layout {name}: {wrong}"


def _wrong(devices: Field) -> str:
    counts = {name: amount.whole for name, amount in devices.entries()}
    if not counts or any(not count or count < 0 or "c." in name for name, count in counts.items()):
        return ""
    wanted = {name: count for name, count in counts.items() if count}
    profiles = sorted({profile.name for geometry in GEOMETRIES for profile in geometry.profiles})
    for name in wanted:
        if all(geometry.find(name) is None for geometry in GEOMETRIES):
            near = next(iter(difflib.get_close_matches(name, profiles, 1, 0)), "")
            return f"no GPU has a MIG profile {name}: did you mean {near}?"
    if any(_fits(geometry, wanted) for geometry in GEOMETRIES):
        return ""
    together = " and ".join(f"{count} x {name}" for name, count in wanted.items())
    return f"{together} do not fit on any GPU together"


def _fits(geometry: Geometry, wanted: dict[str, int]) -> bool:
    try:
        return states(geometry).fits(0, counts_of(geometry, wanted))
    except GeometryError:
        return False
