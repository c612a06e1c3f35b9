"""Run one call: the boundary between an agent's request and the code of a tool.

`arguments` match the schema, its regular expressions aside. A mistake of the agent is a result with status `error`; any
exception of `call` counts as a fault of the tool, for which no agent is scored, and so does a call that goes on long
after `limits.wall_s`. A tool that writes into `workspace.path` returns `files=workspace.changes()`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from mappa_core.errors import Terminated, ToolError
from mappa_core.protocols import Sandboxed, Tool, Workspace
from mappa_core.records import ToolCall, ToolLimits, ToolResult
from mappa_core.redaction import describe_error
from mappa_core.tools.truncate import cut_middle

GRACE_S = 60.0  # Beyond the limit of wall time: a tool that keeps it is never cut off.


async def run_call(
    call: ToolCall, tools: Mapping[str, Tool], workspace: Workspace, limits: Mapping[str, ToolLimits]
) -> ToolResult:
    """Run `call`. `tools` and `limits` are by the offered name of the tool; both have the same names.

    A call that cannot be run (it has an error, an unknown tool, or arguments that do not match the schema) results in
    status `error` with the reason on stderr. Raises ToolError if the tool's machinery or code failed.
    """
    problem = _problem(call, tools)
    if problem is not None:
        return ToolResult(tool=call.name, status="error", stderr=problem)
    tool, limit = tools[call.name], limits[call.name]
    # What runs programs ends them itself, and waits before for one of its workers, which does not count.
    wait_s = None if isinstance(tool, Sandboxed) else limit.wall_s + GRACE_S
    try:
        async with asyncio.timeout(wait_s) as deadline:
            return await tool.call(call.arguments, workspace, limit)
    except (ToolError, Terminated):
        raise
    except (Exception, SystemExit) as error:  # the boundary of tools
        if deadline.expired():
            raise ToolError(f"the tool {call.name!r} gave no result within {wait_s:g} s (limits.wall_s)") from error
        raise ToolError(f"the tool {call.name!r} raised {describe_error(error)}") from error


def _problem(call: ToolCall, tools: Mapping[str, Tool]) -> str | None:
    if call.error is not None:
        return call.error
    if call.name not in tools:
        return f"there is no tool {call.name!r} (there are: {', '.join(sorted(tools)) or 'none'})"
    return _schema_error(call.name, tools[call.name].spec.schema, call.arguments)


def _schema_error(name: str, schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str | None:
    """Describe what does not fit; None, too, where the schema cannot be used: it is a server's, and the tool judges."""
    from jsonschema import exceptions, validators  # here, as its import takes longer than most runs of a command
    from referencing import Registry

    with suppress(Exception):
        kind = validators.validator_for(dict(schema), default=validators.Draft202012Validator)
        validator = _without_patterns(kind)({**schema, "$schema": ""}, registry=Registry())
        error = exceptions.best_match(validator.iter_errors(dict(arguments)))
        if error is not None:
            where = f" at {error.json_path[2:]!r}" if error.path else ""
            return f"the arguments of {name!r} do not fit its schema{where}: {cut_middle(error.message, 500)}"
    return None


@cache
def _without_patterns(kind: Any) -> Any:
    """The validator `kind` without rules by regular expressions: they are JavaScript's, and one can take for ever."""
    from jsonschema import validators

    check = kind.VALIDATORS["additionalProperties"]

    def additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Any:
        # Which properties are additional depends on the patterns, where there are any.
        return () if "patternProperties" in schema else check(validator, allowed, instance, schema)

    rules: Any = dict.fromkeys(("pattern", "patternProperties", "unevaluatedProperties"))
    rules["additionalProperties"] = additional_properties
    return validators.extend(kind, rules)  # type: ignore[no-untyped-call]
