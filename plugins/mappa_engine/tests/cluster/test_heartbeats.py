"""Signs of life: who is judged by them, and from when on."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

from mappa_engine.cluster.actors.actor import Actor
from mappa_engine.cluster.errors import ActorTimeout, NodeLost

CHECKS = 3


class Silent:
    """Ray's handle of an actor that never answers."""

    def __getattr__(self, method):
        reference = SimpleNamespace(future=Future)
        return SimpleNamespace(
            options=lambda **_: SimpleNamespace(remote=lambda *_: reference), remote=lambda *_: reference
        )


def silent_actor(**fields) -> Actor:
    return Actor("one", Silent(), None, **fields)


def test_actor_without_a_process_is_not_hung():
    actor = silent_actor()
    for _ in range(10 * CHECKS):
        actor.check_heartbeat(CHECKS)
    assert actor.failure is None


def test_process_without_heartbeats_is_late():
    actor = silent_actor()
    actor.process = SimpleNamespace(pid=1, host="n0")
    for _ in range(1 + CHECKS):
        actor.check_heartbeat(CHECKS)
    assert isinstance(actor.failure, ActorTimeout)


def test_calls_to_an_actor_on_a_lost_node_fail_at_once():
    actor = silent_actor(node="10.0.0.2")
    call = actor.call("anything")
    actor.lose_node()
    assert isinstance(call.future.exception(), NodeLost)
    assert "its node 10.0.0.2 is gone" in str(call.future.exception())
