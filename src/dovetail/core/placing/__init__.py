# SPDX-License-Identifier: Apache-2.0
"""Where pods go: filters, scores, the score cache per shape, and the search for whole gangs."""
