# SPDX-License-Identifier: Apache-2.0
"""An API behind the API server (an aggregated API), answered by a process of its own that another one starts.

In the process that starts it:
- `process`: starts it, and again when it has ended; `registration`: where the API server finds it, and how the API
  server authenticates itself.

In the process that answers:
- `serving`: TLS, authentication, limits of a request; `paths`: questions from the paths of requests; `question`.
- `forked`: a process that works out answers and can be ended; `turns`: one at a time, and how often a user may ask.
- `certificate`: the serving certificate; `priority`: how it yields to the one that started it.
"""
