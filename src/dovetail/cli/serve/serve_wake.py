# SPDX-License-Identifier: Apache-2.0
"""`dovetail serve wake`."""

from __future__ import annotations

from dovetail.cli.serve.one_engine import engine_command

command = engine_command("wake")
