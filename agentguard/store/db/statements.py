"""Statements that are carried out for row after row: compiled once, and handed to the driver as they are.

SQLAlchemy looks at each row of parameters anew. Ours are made to fit before
(`agentguard.store.db.row_mapping`), so that
this would only cost time; its errors, events and transactions stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, cast

import orjson
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    CursorResult,
    Executable,
    Text,
    any_,
    bindparam,
    func,
    select,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.compiler import SQLCompiler

Values = Mapping[str, Any]


class _CompiledStatement(NamedTuple):
    """A statement as a driver takes it, and how it takes its parameters."""

    text: str
    bind: Callable[[Values], Any]


def match_any_id(column: Column[str], dialect: str) -> ColumnElement[bool]:
    """Whether a column holds one of the ids in the parameter ``ids`` (`to_id_parameter`).

    They are one parameter, so that the text of a statement is the same for any number of them.
    """
    if dialect == "postgresql":
        return column == any_(bindparam("ids", type_=postgresql.ARRAY(Text)))
    given = func.json_each(bindparam("ids", type_=Text)).table_valued("value")
    return column.in_(select(given.c.value))


def to_id_parameter(ids: list[str], dialect: str) -> list[str] | str:
    """Ids as `match_any_id` takes them."""
    return ids if dialect == "postgresql" else orjson.dumps(ids).decode()


_STATEMENT_CACHE: dict[tuple[Executable, str], _CompiledStatement] = {}


def execute_many(connection: Connection, statement: Executable, rows: Sequence[Values]) -> None:
    """Carry out a statement for each row of parameters.

    Args:
        connection: in a transaction.
        statement: one that is kept and used again; its parameters are those of its columns, or named.
        rows: at least one; values that the driver takes, and more of them than needed do no harm.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the database refused a row, or is in trouble.
    """
    text, given = _get_statement(connection, statement)
    connection.exec_driver_sql(text, [given(one) for one in rows])


def execute_query(connection: Connection, statement: Executable, values: Values) -> CursorResult[Any]:
    """Carry out a query that is kept and used again; rows have the driver's types (SQLite: no booleans)."""
    text, given = _get_statement(connection, statement)
    return connection.exec_driver_sql(text, given(values))


def _get_statement(connection: Connection, statement: Executable) -> _CompiledStatement:
    key = (statement, connection.dialect.name)
    if (found := _STATEMENT_CACHE.get(key)) is None:
        found = _STATEMENT_CACHE[key] = _compile_statement(connection, statement)
    return found


def _compile_statement(connection: Connection, statement: Executable) -> _CompiledStatement:
    compiled = cast(SQLCompiler, cast(Any, statement).compile(dialect=connection.dialect))
    order = compiled.positiontup
    if order is None:  # by name: psycopg picks what it needs
        return _CompiledStatement(str(compiled), lambda values: values)
    if len(order) == 1:
        return _CompiledStatement(str(compiled), lambda values: (values[order[0]],))
    return _CompiledStatement(str(compiled), itemgetter(*order))
