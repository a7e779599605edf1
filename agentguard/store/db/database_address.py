"""Address of the database, from a path, a URL or the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import quote, quote_plus

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from agentguard.errors import ConfigError
from agentguard.store.default_location import find_default_location

_SECRET_PARAMETERS = frozenset({"password", "sslpassword", "passfile"})
_POSTGRESQL_DRIVERS = frozenset({"postgresql", "postgres", "postgresql+psycopg"})
_MASK = "***"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseAddress:
    """Address of a database. ``str()`` and ``repr()`` mask the password.

    Attributes:
        kind: kind of database.
        path: the file, for SQLite.
        url: URL for SQLAlchemy, including the password.
    """

    kind: Literal["sqlite", "postgresql"]
    path: Path | None = None
    url: URL = field(repr=False)

    def __str__(self) -> str:
        if self.path is not None:
            return str(self.path)
        query = {key: _MASK if key in _SECRET_PARAMETERS else value for key, value in self.url.query.items()}
        return self.url.set(drivername=self.kind, query=query).render_as_string(hide_password=True)

    def redact(self, text: str) -> str:
        """Return ``text`` with the password masked in all its quoted forms."""
        secrets = [self.url.password or "", *(self._get_query_value(key) for key in _SECRET_PARAMETERS)]
        for secret in sorted(filter(None, map(str, secrets)), key=len, reverse=True):
            # SQLAlchemy does not quote spaces and plus signs; other libraries do.
            quoted = {quote(secret, safe=safe, errors="replace") for safe in ("", "/", " +")}
            for form in {secret, quote_plus(secret, errors="replace"), *quoted}:
                text = text.replace(form, _MASK)
        return text

    def _get_query_value(self, key: str) -> str:
        value = self.url.query.get(key, "")
        return value if isinstance(value, str) else ",".join(value)


def resolve_address(url: str | Path | None, environ: Mapping[str, str] | None = None) -> DatabaseAddress:
    """Return the address: ``url``, else ``AGENTGUARD_STORE``, else ``.agentguard/store.db``.

    Raises:
        ConfigError: the URL or path is not that of a supported database; the message does not repeat it.
    """
    location = url or find_default_location(environ)
    text = str(location)
    if "\0" in text:
        raise ConfigError("the path of the store contains U+0000")
    if isinstance(location, Path) or "://" not in text:
        return _build_file_address(Path(text))
    try:
        parsed_url = make_url(text)
    except (ArgumentError, ValueError):
        raise ConfigError("the URL of the store is not valid") from None
    if parsed_url.drivername in ("sqlite", "sqlite+pysqlite"):
        return _build_sqlite_address(parsed_url)
    if parsed_url.drivername in _POSTGRESQL_DRIVERS:
        return DatabaseAddress(kind="postgresql", url=parsed_url.set(drivername="postgresql+psycopg"))
    raise ConfigError("the URL of the store begins with neither sqlite:// nor postgresql://")


def _build_file_address(path: Path) -> DatabaseAddress:
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: a store is a file such as runs.db, or a URL postgresql://…")
    full_path = path.expanduser().absolute()
    return DatabaseAddress(
        kind="sqlite", path=full_path, url=URL.create("sqlite+pysqlite", database=str(full_path))
    )


def _build_sqlite_address(parsed: URL) -> DatabaseAddress:
    name = parsed.database
    if not name or name == ":memory:" or name.startswith("file:") or parsed.query:
        raise ConfigError("a store in SQLite is a file: sqlite:///path/to/store.db, without options")
    return _build_file_address(Path(name))
