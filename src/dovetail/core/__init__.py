# SPDX-License-Identifier: Apache-2.0
"""Decisions as values: `cycle.step(state, events, now_ms)` and nothing that touches the world.

Imports the standard library, msgspec and numpy only. No clock, randomness, logging, environment or I/O in here;
`now_ms` is an argument. Integers in decisions; ties end in a total order that does not depend on the names of nodes.
"""
