"""``agentguard view``: runs of a store, or of files, in a browser."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlencode

import typer

from agentguard.errors import ConfigError, MissingExtra, StoreError

if TYPE_CHECKING:
    from agentguard.otlp.exporter import ExportTarget
    from agentguard.store.store import Store
    from agentguard_server.viewer.data.file_loader import FileLoader
    from agentguard_server.viewer.settings import ViewerSettings

PORT: Final = 7430
_SQLITE: Final = b"SQLite format 3\x00"
_URLS: Final = ("sqlite:", "postgresql:", "postgres:", "postgresql+")
_NEEDED: Final = ("sqlalchemy", "alembic", "starlette", "uvicorn", "jinja2")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(view)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What is to be shown: a store, files to read into one, and kept evaluations."""

    store: str | None = None
    runs: tuple[Path, ...] = ()
    evals: tuple[Path, ...] = ()


def view(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STORE | FILE…]",
            help="A store's path or URL; or files and folders of runs, of any known format, or evaluations.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--store", metavar="URL", help="The store to show, and to keep the runs of files in."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help=f"Port to listen on, 0 for a free one; {PORT}, if absent."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="AGENTGUARD_VIEW_TOKEN", help="What a browser must show; made up off loopback, if absent."
        ),
    ] = None,
    tenant: Annotated[str, typer.Option(help="Whose runs to show.")] = "",
    diagnose: Annotated[
        bool, typer.Option("--diagnose/--no-diagnose", help="Diagnose the runs of files, or only show them.")
    ] = True,
    otlp: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A collector of traces, to which the page of a run can send it."),
    ] = None,
    otlp_header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A header for the collector; repeatable."),
    ] = None,
    opens: Annotated[bool, typer.Option("--open", help="Open a browser.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the address as JSON, for programs.")] = False,
) -> None:
    """Show runs in a browser: which failed, at which step, and what was done about it.

    Without arguments it shows the store that AGENTGUARD_STORE names, else .agentguard/store.db. Files are
    read into a store that is gone when the command ends, unless --store says where to keep them. Ctrl-C
    ends it.
    """
    _check_installed()
    from agentguard.evals.result_file import RESULTS_FOLDER
    from agentguard_server.uvicorn_runner import ServerHandle, address_of
    from agentguard_server.viewer.app import build_app
    from agentguard_server.viewer.settings import ViewerSettings, is_loopback

    found = _sorted(sources or [], url)
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    settings = ViewerSettings(
        host=host,
        token=token,
        tenant=tenant,
        may_judge=not found.runs or url is not None,
        evals=found.evals or (RESULTS_FOLDER,),
        collector=_collector(otlp, otlp_header or []),
    )
    with _opened(found) as store, closing(_listening(host, port)) as listening:
        address = address_of(listening, host)
        loader = _loader(store, found, settings, diagnose=diagnose)
        app = build_app(store, settings, loading=loader.loading)

        def began() -> None:
            _tell(address, token, json=json)
            loader.start()
            if opens:
                _open(_with_token(address, token))

        ServerHandle(app, began=began, ending=app.state.hub.close).serve_on(listening)
        loader.stop()


def _check_installed() -> None:
    from importlib.util import find_spec

    for package in _NEEDED:
        if find_spec(package) is None:
            raise MissingExtra(package, "view")


def _collector(url: str | None, headers: list[str]) -> ExportTarget | None:
    """The collector, if one was named; headers may also come from OpenTelemetry's own variables."""
    if url is None:
        if headers:
            raise ConfigError("view: --otlp-header goes with --otlp")
        return None
    from agentguard.otlp import encoding
    from agentguard.otlp.exporter import ExportTarget, header

    target = ExportTarget.of(url, dict(map(header, headers)), os.environ)
    encoding.check(target.encoding)
    return target


def _sorted(sources: list[str], url: str | None) -> Sources:
    """Tell stores, runs and evaluations apart. Raises ConfigError that names what cannot be used."""
    stores = [] if url is None else [url]
    runs: list[Path] = []
    evals: list[Path] = []
    for one in sources:
        path = Path(one)
        if one.startswith(_URLS) or _is_database(path):
            stores.append(one)
        elif not path.exists():
            raise ConfigError(f"view: there is no file, folder or store {one}")
        elif _is_evaluation(path):
            evals.append(path)
        else:
            runs.append(path)
    if len(stores) > 1:
        raise ConfigError(f"view: one store at a time, not {' and '.join(map(_masked, stores))}")
    if runs and stores and url is None:
        raise ConfigError("view: a store and files: put --store before the store to keep the runs in it")
    return Sources(store=stores[0] if stores else None, runs=tuple(runs), evals=tuple(evals))


def _masked(url: str) -> str:
    from agentguard.store.db.url import resolve

    return str(resolve(url))


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False


def _is_evaluation(path: Path) -> bool:
    from agentguard.evals.result_file import FORMAT

    try:
        with path.open("rb") as file:
            return FORMAT.encode() in file.read(64)
    except OSError:
        return False


@contextmanager
def _opened(found: Sources) -> Iterator[Store]:
    """The store to show; one of its own for files that are not to be kept, gone afterwards."""
    from agentguard.store.db.url import resolve
    from agentguard.store.store import Store

    if (found.runs or found.evals) and found.store is None:
        folder = Path(tempfile.mkdtemp(prefix="agentguard-view-"))
        try:
            with Store.open(folder / "store.db") as store:
                yield store
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    address = resolve(found.store)
    if not found.runs and address.path is not None and not address.path.exists():
        raise StoreError(
            f"there is no store {address}: name files to look at, or make one with `agentguard store init`"
        )
    with Store.open(found.store) as store:
        yield store


def _loader(store: Store, found: Sources, settings: ViewerSettings, *, diagnose: bool) -> FileLoader:
    from agentguard_server.viewer.data.file_loader import FileLoader

    chosen = None
    if diagnose and found.runs:
        from agentguard.guard import Guard

        chosen = Guard().diagnose

    def told(text: str) -> None:
        typer.echo(f"not read: {text}", err=True)

    return FileLoader(store, found.runs, diagnose=chosen, tenant=settings.tenant, on_error=told)


def _listening(host: str, port: int | None) -> socket.socket:
    """A socket on the port that was asked for; without one, on the usual port if that is free."""
    from agentguard_server.uvicorn_runner import bound

    if port is not None:
        return bound(host, port)
    try:
        return bound(host, PORT)
    except ConfigError:
        return bound(host, 0)


def _tell(url: str, token: str | None, *, json: bool) -> None:
    if json:
        typer.echo(dumps({"url": url, "token": token}))
    else:
        typer.echo(f"agentguard view: {_with_token(url, token)}\nCtrl-C ends it.")
    sys.stdout.flush()


def _with_token(url: str, token: str | None) -> str:
    return f"{url}/?{urlencode({'token': token})}" if token else f"{url}/"


def _open(url: str) -> None:
    """In a thread, as some browsers keep the caller waiting."""
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
