# SPDX-License-Identifier: Apache-2.0
"""What answers the questions of pages: one protocol, and the running scheduler as one that has it.

Rules: an answer is that of the command, as `kube.reading.views` asks for it. `moment` is a small question: only where
its answer has changed, the pages are asked for again.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from msgspec.structs import replace

from dovetail.aggregated.question import BadQuestion
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.credentials import Files
from dovetail.kube.api.errors import KubeError
from dovetail.kube.objects.views import NODE_HOLDERS, ViewDocument
from dovetail.kube.reading.views import NoSuchObject, NoView, ViewRequest, ask_view


class SourceAway(Exception):
    """Nothing is answered at this time; the message is why."""


class ViewSource(Protocol):
    """What answers. `name` is shown; `changed` is set when answers may have changed."""

    name: str
    changed: asyncio.Event

    async def moment(self, namespace: str) -> str:
        """A text that changes with the answers for users that may see this namespace ("": for those that may see all).
        Raises SourceAway."""

    async def ask(self, request: ViewRequest) -> ViewDocument:
        """The answer. Raises SourceAway, NoSuchObject."""


class PredictingSource(ViewSource, Protocol):
    """A source about the cluster as it is, which also answers what a change would do."""

    async def predict(self, request: ViewRequest, authorization: str) -> ViewDocument:
        """The answer to a question with a body, asked by a viewer with this Authorization header ("": by our own
        user). Raises BadQuestion."""


class SchedulerViews:
    """The running scheduler, through the API server; `client` is open."""

    def __init__(self, config: ClusterConfig, client: Client) -> None:
        self.name = config.server
        self.changed = asyncio.Event()
        self._namespace = config.namespace
        self._config = config
        self._client = client

    async def moment(self, namespace: str) -> str:
        """No node has the name "", so the answer is empty, and has the step of the scheduler."""
        found = await self.ask(ViewRequest(NODE_HOLDERS, namespace, query={"node": ""}, alone=bool(namespace)))
        return f"{found.step} {found.as_of_ms}"

    async def ask(self, request: ViewRequest) -> ViewDocument:
        try:
            # Where the user may see one namespace alone, that of the kubeconfig is shown.
            return await ask_view(self._client, replace(request, namespace=request.namespace or self._namespace))
        except (NoView, KubeError) as error:
            raise SourceAway(str(error)) from error

    async def predict(self, request: ViewRequest, authorization: str) -> ViewDocument:
        asked = replace(request, namespace=request.namespace or self._namespace)
        try:
            if not authorization:
                return await ask_view(self._client, asked)
            own = Files(token=authorization.partition(" ")[2].strip())
            async with Client(replace(self._config, source=own), user_agent="dovetail-dashboard") as client:
                return await ask_view(client, asked)
        except NoSuchObject as error:
            raise BadQuestion(400, str(error)) from error
        except (NoView, KubeError) as error:
            raise BadQuestion(503, str(error)) from error
