# SPDX-License-Identifier: Apache-2.0
"""The Model Context Protocol server of an agent's control plane: a language model asks for GPUs turn by turn.

- `tools`: what a model can call; `arguments`: what each call takes; `answers`: what it gets back.
- `session`: the tools, on top of a plane; `requests`: one request that the model steers; `notices`: what it must hear.
- `quoting`: texts of others as data; `descriptions`, `progress`: offers, leases and a request in words and as JSON.
- `server`: the official SDK's server around a session; `transports`: stdio and streamable HTTP.

Only `server` and `transports` import the SDK (the package `mcp`, an optional extra).
"""
