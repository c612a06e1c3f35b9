"""Evaluate arithmetic that a stranger wrote, above all a model, within limits: exactly where the numbers are rational.
Standard library only."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

MAX_EXPRESSION_CHARACTERS = 1000
MAX_BITS = 10_000
"""Maximum size of an exact number, about 3000 digits: keeps every operation far below a millisecond."""

_Number = Fraction | float

_BINARY: Mapping[type[ast.operator], Callable[[_Number, _Number], _Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_SIGNS: Mapping[type[ast.unaryop], int] = {ast.UAdd: 1, ast.USub: -1}
_CONSTANTS: Mapping[str, _Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}


class ExpressionError(ValueError):
    """An expression cannot be evaluated; the message is for its author."""


def evaluate_expression(expression: str) -> _Number:
    """Evaluate `expression`: a Fraction if all steps are exact and rational, else a float. Raises ExpressionError if
    it is not arithmetic, undefined, not real, or too large."""
    if len(expression) > MAX_EXPRESSION_CHARACTERS:
        raise ExpressionError(f"the expression is longer than {MAX_EXPRESSION_CHARACTERS} characters")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body, expression.strip())
    except SyntaxError as error:
        raise ExpressionError(f"not an arithmetic expression: {error.msg}") from error
    except ExpressionError:
        raise
    except ZeroDivisionError as error:
        raise ExpressionError("division by zero") from error
    except (ArithmeticError, ValueError, TypeError) as error:
        raise ExpressionError(str(error)) from error
    except (RecursionError, MemoryError) as error:
        raise ExpressionError("the expression is nested too deeply") from error


def format_result(value: _Number) -> str:
    """Format an integer in full, a fraction as `a/b` with its decimal value, a float in its shortest form."""
    if isinstance(value, float):
        return repr(value)
    if value.denominator == 1:
        return str(value.numerator)
    try:
        decimal = float(value)
    except OverflowError:
        return str(value)
    exact = Fraction(repr(decimal)) == value
    return repr(decimal) if exact else f"{value} (about {decimal!r})"


def _value(node: ast.expr, source: str) -> _Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _literal(value, ast.get_source_segment(source, node))
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _SIGNS:
            return _SIGNS[type(op)] * _value(operand, source)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _check_finite(_power(_value(left, source), _value(right, source)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _check_finite(_BINARY[type(op)](_value(left, source), _value(right, source)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _check_finite(_FUNCTIONS[name](*(_value(arg, source) for arg in args)))
    raise ExpressionError(f"not arithmetic: {ast.get_source_segment(source, node)}")


def _literal(value: int | float, written: str | None) -> Fraction:
    if value == 0 or isinstance(value, int) or written is None:
        return _exact(Fraction(value))
    # The decimal as written: 0.1 is one tenth, not the nearest float. The float is used only for the magnitude.
    if not 1e-300 < value < math.inf:
        raise ExpressionError("a number is too large or too small")
    return _exact(Fraction(written))


def _power(base: _Number, exponent: _Number) -> _Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        size = max(abs(base.numerator), base.denominator).bit_length() - 1
        if size * abs(exponent.numerator) > MAX_BITS:
            raise ExpressionError("a number is too large")
        return base**exponent.numerator
    power = float(base) ** float(exponent)
    if isinstance(power, complex):
        raise ExpressionError("the root of a negative number is not real")
    return float(power)


def _check_finite(value: _Number) -> _Number:
    if not isinstance(value, float):
        return _exact(Fraction(value))
    if not math.isfinite(value):
        raise ExpressionError("a number is too large")
    return value


def _exact(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ExpressionError("a number is too large")
    return value


def _whole(value: _Number) -> int:
    if not isinstance(value, Fraction) or value.denominator != 1:
        raise ExpressionError(f"a whole number is needed, not {format_result(value)}")
    return value.numerator


def _sqrt(value: _Number) -> _Number:
    if isinstance(value, Fraction) and value >= 0:
        root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
        if root * root == value:
            return root
    return math.sqrt(value)


def _of_wholes(function: Callable[..., int], limit: float = math.inf) -> Callable[..., _Number]:
    """Limit `function` to whole numbers up to `limit`."""

    def limited(*values: _Number) -> _Number:
        wholes = [_whole(value) for value in values]
        if any(abs(whole) > limit for whole in wholes):
            raise ExpressionError("a number is too large")
        return Fraction(function(*wholes))

    return limited


def _round(value: _Number, digits: _Number = Fraction(0)) -> _Number:
    places = _whole(digits)
    if abs(places) > 1000:
        raise ExpressionError("a number is rounded to at most 1000 digits")
    return round(Fraction(value), places)


_PLAIN = (abs, min, max, math.floor, math.ceil, math.exp, math.log, math.log2, math.log10)
_TRIGONOMETRIC = (math.sin, math.cos, math.tan, math.asin, math.acos, math.atan)
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{function.__name__: function for function in (*_PLAIN, *_TRIGONOMETRIC)},
    **{function.__name__: _of_wholes(function) for function in (math.gcd, math.lcm)},
    # Values of numbers up to 1000 stay within MAX_BITS.
    **{function.__name__: _of_wholes(function, 1000) for function in (math.factorial, math.comb, math.perm)},
    "round": _round,
    "sqrt": _sqrt,
}
