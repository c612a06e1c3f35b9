"""The base of transports: one client, faults that name no key, and what is raised as it is."""

from __future__ import annotations

import pytest

from mappa_core import ConfigError
from mappa_core.transport import CallError, ErrorParser, Reply, Request, SdkTransport, Secret, check_base_url

KEY = "planted-key"


class Refused(Exception):
    """What the client of this test raises."""


class Client:
    closed = False


class Small(SdkTransport[Client]):
    """A transport that refuses every call."""

    def __init__(self, secret: Secret | None = None, parse_error: ErrorParser | None = None) -> None:
        super().__init__(model="m", url="https://judge.example:8443/v1", secret=secret, parse_error=parse_error)

    async def complete(self, request: Request) -> Reply:
        raise Refused

    def _connect(self) -> Client:
        return Client()

    async def _disconnect(self, client: Client) -> None:
        client.closed = True

    def _fault(self, error: Exception) -> CallError | None:
        return CallError("connection", self._hide(str(error))) if isinstance(error, Refused) else None


async def raising(error: Exception) -> None:
    raise error


async def test_client_error_becomes_a_fault_without_cause_and_without_the_key() -> None:
    transport = Small(Secret(KEY, "JUDGE_KEY"))
    with pytest.raises(CallError, match=r"^connection: not with \[JUDGE_KEY\]$") as caught:
        await transport._send(raising(Refused(f"not with {KEY}")), 1.0)
    assert caught.value.__context__ is caught.value.__cause__ is None


@pytest.mark.parametrize("error", [CallError("garbled", "as it was"), ZeroDivisionError("a bug")])
async def test_any_other_error_is_raised_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        await Small()._send(raising(error), 1.0)
    assert caught.value is error


def test_a_status_is_classified_by_the_providers_own_rule() -> None:
    body, headers = f'{{"error": {{"message": "no {KEY}"}}}}', {"Retry-After": "7"}
    plain = Small(Secret(KEY, "JUDGE_KEY"))._status_fault(429, headers, body)
    assert (str(plain), plain.retry_after_s) == ("rate_limit: status 429: no [JUDGE_KEY]", 7.0)
    own = Small(parse_error=ErrorParser(lambda error: "quota" if "no" in error.message else error.status_fault))
    assert own._status_fault(429, {}, body).kind == "quota"


async def test_transport_names_model_and_host_and_closes_its_client() -> None:
    transport = Small()
    assert (transport.model, transport.host, await transport.count(())) == ("m", "judge.example:8443", None)
    assert (transport._reveal("none"), transport._scrub(KEY)) == ("none", KEY)
    client = transport._client.get()
    await transport.close()
    await transport.close()
    assert client.closed


@pytest.mark.parametrize("url", ["judge.example", "ftp://judge.example", "https://", "https://a:b@judge.example"])
def test_malformed_base_url_is_refused(url: str) -> None:
    check_base_url("judge", "http://judge.example/v1", path="/v1")
    with pytest.raises(ConfigError, match=r"^judge: base_url: must be http\(s\)://HOST/v1, with no name or password"):
        check_base_url("judge", url, path="/v1")
