"""The tool `calculator`: arithmetic without a program, files or processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mappa_core import ToolLimits, ToolResult, ToolSpec, Workspace
from mappa_core.safe_arithmetic import ExpressionError, evaluate_expression, format_result


class Calculator:
    """Implements protocols.Tool: evaluates arithmetic, exactly where the numbers are rational."""

    spec = ToolSpec(
        name="calculator",
        description="Evaluate an arithmetic expression. Operators + - * / // % **, parentheses, the constants pi, e, "
        "tau, and functions such as sqrt, gcd, lcm, factorial, comb, log, sin. Rational numbers stay exact.",
        schema={
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "for example (3 + 4) ** 2 / 7"}},
            "required": ["expression"],
            "additionalProperties": False,
        },
    )

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        """Evaluate `arguments["expression"]`: the value on stdout, or status `error` and the reason on stderr."""
        try:
            answer = format_result(evaluate_expression(arguments["expression"]))
        except ExpressionError as error:
            return ToolResult(tool=self.spec.name, status="error", stderr=str(error))
        return ToolResult(tool=self.spec.name, status="ok", stdout=answer)

    async def close(self) -> None:
        """There are no resources to release."""
