"""Command ``agentguard view``: runs of a store, or of files, in a browser."""

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

from agentguard._lazy import require_packages
from agentguard.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from agentguard.config.prices import PriceTable
    from agentguard.otlp.exporter import ExportTarget
    from agentguard.store.store import Store
    from agentguard_server.viewer.data.file_loader import FileLoader
    from agentguard_server.viewer.settings import ViewerSettings

DEFAULT_PORT: Final = 7430
_SQLITE_MAGIC: Final = b"SQLite format 3\x00"
_URL_PREFIXES: Final = ("sqlite:", "postgresql:", "postgres:", "postgresql+")
_REQUIRED_PACKAGES: Final = ("sqlalchemy", "alembic", "starlette", "uvicorn", "jinja2")


def register(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(view)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSources:
    """Sources of the viewer: a store, files for a store, saved evaluations, campaigns and batch jobs."""

    store: str | None = None
    runs: tuple[Path, ...] = ()
    evals: tuple[Path, ...] = ()
    campaigns: tuple[Path, ...] = ()
    batches: tuple[str, ...] = ()

    @property
    def has_files(self) -> bool:
        """Return whether an argument is a file or a folder."""
        return bool(self.runs or self.evals or self.campaigns or self.batches)


def view(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STORE | FILE…]",
            help="Path or URL of a store; files and folders of runs or evaluations; "
            "folders of campaigns and batch jobs.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--store", metavar="URL", help="Store to show; runs of files are written to it."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65_535, help=f"Port to listen on; 0 selects a free port, by default {DEFAULT_PORT}."
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="AGENTGUARD_VIEW_TOKEN",
            help="Access token for browsers; by default random, and none on a loopback address.",
        ),
    ] = None,
    tenant: Annotated[str, typer.Option(help="Tenant of the runs.")] = "",
    diagnose: Annotated[
        bool, typer.Option("--diagnose/--no-diagnose", help="Diagnose the runs of files.")
    ] = True,
    diagnose_stored: Annotated[
        bool,
        typer.Option(
            "--diagnose-stored",
            help="Diagnose the runs of the store that have no diagnosis, in the background.",
        ),
    ] = False,
    policy: Annotated[
        Path | None,
        typer.Option(help="Policy whose prices apply to the runs of files; by default that of the project."),
    ] = None,
    otlp: Annotated[
        str | None,
        typer.Option(
            "--otlp-endpoint",
            metavar="URL",
            help="Address of a collector of traces; the page of a run can send the run to it.",
        ),
    ] = None,
    otlp_header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Header for the collector; repeatable."),
    ] = None,
    opens: Annotated[bool, typer.Option("--open", help="Open a browser.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """Show runs, their root causes and their recoveries in a browser.

    Without arguments the viewer shows the store of AGENTGUARD_STORE, else .agentguard/store.db. Runs of files
    go to a temporary store, or to that of --store. Ctrl-C ends the viewer.
    """
    require_packages(_REQUIRED_PACKAGES, "view")
    from agentguard.chaos import CAMPAIGNS_FOLDER
    from agentguard.cli.policy_option import load_policy
    from agentguard.evals.result_file import RESULTS_FOLDER
    from agentguard.loopback import is_loopback
    from agentguard_server.listening_socket import build_url
    from agentguard_server.viewer.app import build_app
    from agentguard_server.viewer.server import ViewerServer
    from agentguard_server.viewer.settings import ViewerSettings

    view_sources = classify_sources(sources or [], url)
    if diagnose_stored and view_sources.runs:
        raise ConfigError("view: --diagnose-stored applies to a store; --diagnose applies to runs of files")
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    settings = ViewerSettings(
        host=host,
        token=token,
        tenant=tenant,
        allows_feedback=not view_sources.runs or url is not None,
        evals=view_sources.evals or (RESULTS_FOLDER,),
        campaigns=view_sources.campaigns or (CAMPAIGNS_FOLDER,),
        batches=view_sources.batches,
        collector=_resolve_collector(otlp, otlp_header or []),
        # by time for a store, since it grows; by probability of failure for files
        default_sort="probability" if view_sources.runs else "time",
    )
    with _open_store(view_sources) as store, closing(_bind_socket(host, port)) as listening_socket:
        address = build_url(listening_socket, host)
        prices = load_policy(policy).prices if view_sources.runs else {}
        loader = _build_loader(store, view_sources, settings, diagnose=diagnose, prices=prices)
        app = build_app(store, settings, loading=loader.progress)

        def on_ready() -> None:
            _print_address(address, token, json=json)
            loader.start()
            app.state.search_index.start()
            if diagnose_stored:
                app.state.diagnosis_queue.add_undiagnosed()
            if opens:
                _open_browser(_add_token(address, token))

        ViewerServer(app, on_ready=on_ready, on_shutdown=app.state.hub.close).serve_on(listening_socket)
        loader.stop()
        app.state.search_index.stop()
        app.state.diagnosis_queue.stop()


def _resolve_collector(url: str | None, headers: list[str]) -> ExportTarget | None:
    """Return the export target of the collector, or None.

    The environment variables of OpenTelemetry can add headers. Raises ConfigError for headers without a
    URL.
    """
    if url is None:
        if headers:
            raise ConfigError("view: --otlp-header needs --otlp-endpoint")
        return None
    from agentguard.otlp import encoding
    from agentguard.otlp.exporter import ExportTarget, parse_header

    target = ExportTarget.from_environment(url, dict(map(parse_header, headers)), os.environ)
    encoding.check_encoding(target.encoding)
    return target


def classify_sources(sources: list[str], url: str | None) -> ViewSources:
    """Classify the arguments by their content.

    Args:
        sources: paths and URLs.
        url: store of the option ``--store``.

    Raises:
        ConfigError: an argument does not exist, or the arguments contradict each other.
    """
    from agentguard.batch import is_verdict_folder
    from agentguard.chaos import is_campaign_folder
    from agentguard.chaos.causality import find_stitching_folders

    stores = [] if url is None else [url]
    runs: list[Path] = []
    evals: list[Path] = []
    campaigns: list[Path] = []
    batches: list[str] = []
    for source in sources:
        path = Path(source)
        if source.startswith(_URL_PREFIXES) or _is_database(path):
            stores.append(source)
        elif is_verdict_folder(source):
            batches.append(source)
        elif not path.exists():
            raise ConfigError(f"view: {source} is not a file, a folder or a store")
        elif _is_evaluation(path):
            evals.append(path)
        elif is_campaign_folder(path) or path in find_stitching_folders([path]):
            campaigns.append(path)
        else:
            runs.append(path)
    if len(stores) > 1:
        raise ConfigError(f"view: name one store, not {' and '.join(map(_mask_url, stores))}")
    if runs and stores and url is None:
        raise ConfigError(
            "view: got a store and files; to write the runs of the files to the store, name it with --store"
        )
    return ViewSources(
        store=stores[0] if stores else None,
        runs=tuple(runs),
        evals=tuple(evals),
        campaigns=tuple(campaigns),
        batches=tuple(batches),
    )


def _mask_url(url: str) -> str:
    from agentguard.store.db.database_address import resolve_address

    return str(resolve_address(url))


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
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
def _open_store(sources: ViewSources) -> Iterator[Store]:
    """Open the store to show; for files without a store, open a temporary one and delete it afterwards."""
    from agentguard.store.db.database_address import resolve_address
    from agentguard.store.store import Store

    if sources.has_files and sources.store is None:
        folder = Path(tempfile.mkdtemp(prefix="agentguard-view-"))
        try:
            with Store.open(folder / "store.db") as store:
                yield store
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    address = resolve_address(sources.store)
    if not sources.runs and address.path is not None and not address.path.exists():
        raise StoreError(
            f"there is no store {address}: name files to show, or create a store with `agentguard store init`"
        )
    with Store.open(sources.store) as store:
        yield store


def _build_loader(
    store: Store, sources: ViewSources, settings: ViewerSettings, *, diagnose: bool, prices: PriceTable
) -> FileLoader:
    from agentguard_server.viewer.data.file_loader import FileLoader

    diagnose_run = None
    if diagnose and sources.runs:
        from agentguard.guard import Guard

        diagnose_run = Guard().diagnose

    def print_problem(text: str) -> None:
        typer.echo(f"not read: {text}", err=True)

    return FileLoader(
        store,
        sources.runs,
        diagnose=diagnose_run,
        tenant=settings.tenant,
        prices=prices,
        on_error=print_problem,
    )


def _bind_socket(host: str, port: int | None) -> socket.socket:
    """Return a listening socket; without a port, on the default port, or on a free one if it is in use."""
    from agentguard_server.listening_socket import bind_socket

    if port is not None:
        return bind_socket(host, port)
    try:
        return bind_socket(host, DEFAULT_PORT)
    except ConfigError:
        return bind_socket(host, 0)


def _print_address(url: str, token: str | None, *, json: bool) -> None:
    if json:
        typer.echo(dumps({"url": url, "token": token}))
    else:
        typer.echo(f"agentguard view: {_add_token(url, token)}\nStop it with Ctrl-C.")
    sys.stdout.flush()


def _add_token(url: str, token: str | None) -> str:
    return f"{url}/?{urlencode({'token': token})}" if token else f"{url}/"


def _open_browser(url: str) -> None:
    """Open the browser in a thread, since some browsers block the caller."""
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
