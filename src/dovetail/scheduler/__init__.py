# SPDX-License-Identifier: Apache-2.0
"""The live driver: watch -> events -> core.step -> binds, evictions and reports. `serve.run` assembles it."""
