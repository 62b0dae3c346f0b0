# SPDX-License-Identifier: Apache-2.0
"""Where pods go: feasibility, scores, rows of cached answers per shape, and the search for whole gangs."""
