# SPDX-License-Identifier: Apache-2.0
"""Recordings that are written without pauses."""

from tests.recording.conftest import short_pauses

__all__ = ["short_pauses"]
