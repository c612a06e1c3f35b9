"""External agents: a program with a client of OpenAI or Anthropic acts in rollouts, and is trained unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

from mappa_core import Offer, Workflow, hookimpl
from mappa_gateway.options import GatewayOptions


@hookimpl
def mappa_workflows() -> Iterable[Offer[Workflow]]:
    yield Offer("gateway", _build_gateway, GatewayOptions)


@hookimpl
def mappa_recipes() -> Mapping[str, Traversable]:
    return {"gateway": files(__name__) / "recipes" / "gateway.yaml"}


def _build_gateway(options: GatewayOptions) -> Workflow:
    from mappa_gateway.workflow import GatewayWorkflow

    return GatewayWorkflow(options)
