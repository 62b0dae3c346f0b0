# SPDX-License-Identifier: Apache-2.0
"""Placing: filters, scores, the score cache per shape, and the search for a placement of whole gangs."""
