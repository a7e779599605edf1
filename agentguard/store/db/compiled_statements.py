"""Cache of compiled statements, executed by the driver without SQLAlchemy's parameter processing.

SQLAlchemy processes each row of parameters. `agentguard.store.db.row_mapping` has already converted ours, so
that step would only cost time. Errors, events and transactions of SQLAlchemy apply as usual.
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
    """Statement text in the dialect of the driver, and the function that orders its parameters."""

    text: str
    bind: Callable[[Values], Any]


def match_any_id(column: Column[str], dialect: str) -> ColumnElement[bool]:
    """Return the condition that a column equals one of the ids in the parameter ``ids`` (`to_id_parameter`).

    The ids are one parameter, so that the text of the statement is the same for any number of ids.
    """
    if dialect == "postgresql":
        return column == any_(bindparam("ids", type_=postgresql.ARRAY(Text)))
    id_table = func.json_each(bindparam("ids", type_=Text)).table_valued("value")
    return column.in_(select(id_table.c.value))


def to_id_parameter(ids: list[str], dialect: str) -> list[str] | str:
    """Return ids as the parameter of `match_any_id`."""
    return ids if dialect == "postgresql" else orjson.dumps(ids).decode()


_STATEMENT_CACHE: dict[tuple[Executable, str], _CompiledStatement] = {}


def execute_many(connection: Connection, statement: Executable, rows: Sequence[Values]) -> None:
    """Execute a statement for each row of parameters.

    Args:
        connection: a connection in a transaction.
        statement: a statement that is kept and reused; its parameters are named, or are those of its columns.
        rows: at least one; values that the driver accepts. Extra values are ignored.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the database rejected a row or cannot be used.
    """
    text, build_parameters = _get_statement(connection, statement)
    connection.exec_driver_sql(text, [build_parameters(row) for row in rows])


def execute_query(connection: Connection, statement: Executable, values: Values) -> CursorResult[Any]:
    """Execute a query that is kept and reused; values have the types of the driver (SQLite: no booleans)."""
    text, build_parameters = _get_statement(connection, statement)
    return connection.exec_driver_sql(text, build_parameters(values))


def _get_statement(connection: Connection, statement: Executable) -> _CompiledStatement:
    key = (statement, connection.dialect.name)
    if (compiled := _STATEMENT_CACHE.get(key)) is None:
        compiled = _STATEMENT_CACHE[key] = _compile_statement(connection, statement)
    return compiled


def _compile_statement(connection: Connection, statement: Executable) -> _CompiledStatement:
    compiled = cast(SQLCompiler, cast(Any, statement).compile(dialect=connection.dialect))
    order = compiled.positiontup
    if order is None:  # named parameters: psycopg ignores extra ones
        return _CompiledStatement(str(compiled), lambda values: values)
    if len(order) == 1:
        return _CompiledStatement(str(compiled), lambda values: (values[order[0]],))
    return _CompiledStatement(str(compiled), itemgetter(*order))
