# SPDX-License-Identifier: Apache-2.0
"""A layout that was parsed from a description of a node, with notes."""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.devices.layout import Layout


class Reading(Struct, frozen=True):
    """`notes` are sentences: values that are missing in the text and come from a product or a default, and parts of the
    text that a layout does not use."""

    layout: Layout
    notes: tuple[str, ...] = ()
