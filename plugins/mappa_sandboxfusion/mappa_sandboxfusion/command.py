"""`mappa sandboxfusion check URL`: checks that a server can run agents' programs, and reports their environment."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from mappa_core import ConfigError
from mappa_core.redaction import clean
from mappa_sandboxfusion.options import Options

if TYPE_CHECKING:
    from mappa_sandboxfusion.probe import Findings


@click.group("sandboxfusion")
def command() -> None:
    """Check servers on which agents' programs would run."""


@command.command("check", short_help="Run programs on a server and say what they find there.")
@click.argument("url")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(url: str, as_json: bool) -> None:
    """Run programs on the SandboxFusion server at URL, for example http://127.0.0.1:8080, and say what they find there.
    Exit code 2 where it cannot run any."""
    from mappa_sandboxfusion.client import ServerFault  # here, as its imports take longer than most commands

    options = Options(urls=[url])
    options.check()
    try:
        findings = asyncio.run(_inspect(options))
    except ServerFault as fault:
        if as_json:
            click.echo(
                clean(json.dumps({"works": False, "url": fault.url, "reason": fault.reason}, ensure_ascii=False))
            )
        raise ConfigError(str(fault)) from fault
    if as_json:
        document = {"works": True, **asdict(findings), "warnings": findings.warnings}
        click.echo(clean(json.dumps(document, ensure_ascii=False)))
    else:
        _print_findings(findings)


async def _inspect(options: Options) -> Findings:
    from mappa_sandboxfusion.client import FusionClient
    from mappa_sandboxfusion.probe import inspect_server, new_folder_name

    client = FusionClient(options.urls[0], connect_timeout_s=options.connect_timeout_s)
    try:
        return await inspect_server(client, new_folder_name(), keep=False)
    finally:
        await client.close()


def _print_findings(findings: Findings) -> None:
    click.echo(f"{findings.url} runs programs")
    click.echo(f"  Python   {'.'.join(map(str, findings.python))}")
    click.echo(f"  files    {'kept' if findings.keeps_files else 'not kept'} from one program to the next")
    click.echo(f"  user     {'root' if findings.as_root else 'not root'}")
    for warning in findings.warnings:
        click.echo(click.style(f"Warning: {warning}", fg="yellow"))
