# SPDX-License-Identifier: Apache-2.0
"""The API of the scheduler's views is registered only while a scheduler answers it.

state   what the registration is now, and what comes next: no input or output
part    reads objects, and does it
"""

from __future__ import annotations

from dovetail.operator.views.part import ViewRegistrations as ViewRegistrations
