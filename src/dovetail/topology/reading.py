# SPDX-License-Identifier: Apache-2.0
"""A layout that was read from a description of a node, and what the description does not say."""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.devices.layout import Layout


class Reading(Struct, frozen=True):
    """`notes` are sentences: what was taken from a product or a default because it is not written, and what is written
    and means nothing to a layout."""

    layout: Layout
    notes: tuple[str, ...] = ()
