# SPDX-License-Identifier: Apache-2.0
"""The live driver: watch -> events -> core.step -> carry out. `serve.run` wires it; what it decides is the core's."""
