"""`--where`: a comparison of columns, read as data: nothing in it is executed."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.pipeline.errors import UsageError

_SameWords: TypeAlias = Callable[[str], pa.Array]
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_HELP = "it should compare columns, as in: word == 'bank' and year >= 1990, party in ['left', 'right'], not id is None"
# Deeper ones would exceed the stack.
_MOST_CHARACTERS = 2000


def parse_where(text: str, same_words: _SameWords | None = None) -> pc.Expression:
    """The filter that a text stands for: a subset of Python's comparisons. UsageError for anything else.

    A null is neither equal nor unequal to a value, and neither in a list nor not in it. `same_words`: the words of the
    column `word` that count as a word; None if the column is compared as any other.

    >>> parse_where("1990 <= year < 2000 and word != 'bank'")
    <pyarrow.compute.Expression (((1990 <= year) and (year < 2000)) and (word != "bank"))>
    """
    try:
        if len(text) > _MOST_CHARACTERS:
            raise SyntaxError(f"more than {_MOST_CHARACTERS:,} characters")
        return _filter(ast.parse(text.strip(), mode="eval").body, same_words)
    except (SyntaxError, ValueError, OverflowError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(f"--where {text!r}: {why}; {_HELP}") from None


def _filter(node: ast.expr, same_words: _SameWords | None) -> pc.Expression:
    if isinstance(node, ast.BoolOp):
        join = operator.and_ if isinstance(node.op, ast.And) else operator.or_
        return functools.reduce(join, (_filter(value, same_words) for value in node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ~_filter(node.operand, same_words)
    if isinstance(node, ast.Name):
        return pc.field(node.id)
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        compared = zip(sides, node.ops, sides[1:], strict=False)
        return functools.reduce(operator.and_, (_comparison(*one, same_words) for one in compared))
    raise SyntaxError(f"{ast.unparse(node)} is no comparison")


def _comparison(left: ast.expr, comparison: ast.cmpop, right: ast.expr, same_words: _SameWords | None) -> pc.Expression:
    if isinstance(comparison, ast.In | ast.NotIn):
        if not isinstance(right, ast.List | ast.Tuple):
            raise SyntaxError(f"{ast.unparse(right)} is no list")
        equal = (_comparison(left, ast.Eq(), value, same_words) for value in right.elts)
        found = functools.reduce(operator.or_, equal, pc.scalar(False))
        return ~found if isinstance(comparison, ast.NotIn) else found
    if isinstance(comparison, ast.Is | ast.IsNot):
        if not (isinstance(right, ast.Constant) and right.value is None):
            raise SyntaxError("`is` is for None")
        return _operand(left).is_null() if isinstance(comparison, ast.Is) else _operand(left).is_valid()
    for column, value in ((left, right), (right, left)):
        is_word = isinstance(column, ast.Name) and column.id == "word" and not isinstance(value, ast.Name)
        if same_words is not None and is_word and isinstance(comparison, ast.Eq | ast.NotEq):
            found = pc.field("word").isin(same_words(str(_value(value))))
            return found if isinstance(comparison, ast.Eq) else ~found
    return _COMPARISONS[type(comparison)](_operand(left), _operand(right))


def _operand(node: ast.expr) -> pc.Expression:
    return pc.field(node.id) if isinstance(node, ast.Name) else pc.scalar(_value(node))


def _value(node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        value = None
    if not isinstance(value, str | int | float):
        raise SyntaxError(f"{ast.unparse(node)} is neither a column, a text nor a number")
    return value
