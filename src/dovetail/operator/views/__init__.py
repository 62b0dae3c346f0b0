# SPDX-License-Identifier: Apache-2.0
"""The APIs of the scheduler's views and of the history are registered only while they are answered.

state   what the registration is now, and what comes next: no input or output
part    reads objects, and does it
"""

from __future__ import annotations

from dovetail.operator.views.part import HISTORY as HISTORY
from dovetail.operator.views.part import VIEWS as VIEWS
from dovetail.operator.views.part import ApiRegistration as ApiRegistration
