"""Checks of an installation: what is there, what works, and the way out where something does not."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, metadata, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from agentguard.errors import AgentGuardError
from agentguard.registry import Registry
from agentguard.version import __version__

Condition = Literal["ok", "note", "wrong"]

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "serve": ("uvicorn", "httptools", "msgspec", "prometheus_client", "starlette"),
    "store": ("sqlalchemy", "alembic"),
    "postgres": ("psycopg",),
    "view": ("jinja2", "starlette", "uvicorn"),
    "chat": ("openai",),
    "otel": ("httpx2", "opentelemetry.proto"),
    "langchain": ("langchain", "langgraph"),
    "openai-agents": ("agents",),
    "pydantic-ai": ("pydantic_ai",),
    "embeddings": ("sentence_transformers",),
}
"""What each extra brings, by the names under which it is imported; those that are asked for most."""

_YEAR_2024: Final = 1_704_067_200


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that was looked at.

    Attributes:
        area: what it belongs to.
        what: what it is.
        condition: ``note``: worth knowing, and nothing is wrong.
        found: what was found, without secrets.
        way_out: what to do about it; empty if there is nothing to do.
    """

    area: str
    what: str
    condition: Condition
    found: str
    way_out: str = ""

    def as_dict(self) -> dict[str, str]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be looked at.

    Attributes:
        config: the proxy's configuration; None if there is none to look at.
        store: path or URL of a store; None: the usual one, if it is there.
        network: whether the endpoints that are configured are asked.
        timeout_s: longest wait for one of them.
        canaries: whether chat judges are asked about the canary runs, as ``agentguard judge check`` does.
    """

    config: Path | None = None
    store: str | None = None
    network: bool = True
    timeout_s: float = 5.0
    canaries: bool = False


Checks = Callable[[Asked], Iterator[Line]]


def checks() -> Registry[Checks]:
    """The registry of checks: those below, the proxy's, and installed ones."""
    return _CHECKS


_CHECKS: Registry[Checks] = Registry(
    "check",
    group="agentguard.checks",
    builtin={
        "1-python": f"{__name__}:python",
        "2-extras": f"{__name__}:extras",
        "3-model": f"{__name__}:model",
        "4-store": f"{__name__}:store",
        "5-proxy": "agentguard_server.proxy.doctor:check",
    },
)


def python(_: Asked) -> Iterator[Line]:
    """The interpreter, the package, the clock."""
    found = f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}"
    good = sys.version_info >= (3, 11)
    way_out = "" if good else "install Python 3.11 or later"
    yield Line(
        area="python", what="version", condition="ok" if good else "wrong", found=found, way_out=way_out
    )
    yield Line(area="python", what="agentguard", condition="ok", found=_installed())
    late = time.time() < _YEAR_2024
    yield Line(
        area="python",
        what="clock",
        condition="wrong" if late else "ok",
        found=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        way_out="set this machine's clock: certificates and logs need it" if late else "",
    )


def extras(_: Asked) -> Iterator[Line]:
    """What is installed beyond the core; that something is not is no fault."""
    for extra, packages in EXTRAS.items():
        missing = [one for one in packages if not _there(one)]
        if not missing:
            yield Line(area="extras", what=extra, condition="ok", found=", ".join(map(_version, packages)))
            continue
        yield Line(
            area="extras",
            what=extra,
            condition="note",
            found=f"{', '.join(missing)} not installed",
            way_out=f"where it is needed: pip install 'agentguard[{extra}]'",
        )


def model(_: Asked) -> Iterator[Line]:
    """The embedded judge's model file: there, unchanged, and able to answer."""
    from agentguard.judge.store import load, load_card

    try:
        card = load_card()
        load()
    except AgentGuardError as error:
        yield Line(
            area="model",
            what="embedded judge",
            condition="wrong",
            found=str(error),
            way_out="install agentguard anew, or train one: agentguard judge train",
        )
        return
    made = str(card.get("sha256", ""))[:12]
    yield Line(area="model", what="embedded judge", condition="ok", found=f"sound, sha256 {made}…")


def store(asked: Asked) -> Iterator[Line]:
    """The store: reachable, of this version, and writable."""
    if not _there("sqlalchemy"):
        yield Line(
            area="store", what="store", condition="note", found="not installed",
            way_out="where it is needed: pip install 'agentguard[store]'",
        )  # fmt: skip
        return
    from agentguard.store.url import ENVIRONMENT, resolve

    try:
        address = resolve(asked.store)
    except AgentGuardError as error:
        yield Line(area="store", what="address", condition="wrong", found=str(error),
                   way_out=f"give --store, or set {ENVIRONMENT}")  # fmt: skip
        return
    if address.path is not None and not address.path.exists() and (asked.store or ENVIRONMENT in os.environ):
        way_out = "correct the path, or make it: agentguard store init"
        yield Line(area="store", what=str(address), condition="wrong", found="there is none", way_out=way_out)
        return
    yield open_store(asked.store)


def open_store(url: str | None) -> Line:
    """Whether a store can be opened: a line about it. None is made where there is none yet."""
    from agentguard.errors import StoreVersion
    from agentguard.store.migrate import REVISIONS
    from agentguard.store.options import Options
    from agentguard.store.store import Store
    from agentguard.store.url import resolve

    name = "store"
    try:
        address = resolve(url)
        name = str(address)
        if address.path is not None and not address.path.exists():
            return _none_yet(address.path)
        with Store.open(url, options=Options(busy_s=2.0)) as opened:
            runs = opened.stats(tenant=None).rows.get("runs", 0)
    except StoreVersion as error:
        way_out = "make a copy of it, then: agentguard store migrate"
        return Line(area="store", what=name, condition="wrong", found=str(error), way_out=way_out)
    except AgentGuardError as error:
        way_out = "look whether the database runs, and whether its address and password are right"
        return Line(area="store", what=name, condition="wrong", found=str(error), way_out=way_out)
    return Line(area="store", what=name, condition="ok", found=f"version {REVISIONS[-1]}, {runs:,} runs")


def _none_yet(path: Path) -> Line:
    """A file that will be made, if it can be."""
    folder = next(one for one in path.parents if one.exists())
    if not os.access(folder, os.W_OK):
        way_out = f"let this user write to {folder}, or name another place"
        return Line(
            area="store", what=str(path), condition="wrong", found="none can be made", way_out=way_out
        )
    way_out = "it is made when it is first used, or by: agentguard store init"
    return Line(area="store", what=str(path), condition="note", found="there is none yet", way_out=way_out)


def run(asked: Asked) -> Iterator[Line]:
    """All checks, in order; one that fails itself is a line, too."""
    for name in checks():
        try:
            yield from checks().get(name)(asked)
        except Exception as error:  # a plug-in may raise anything; the other checks are still worth having
            yield Line(
                area=name.partition("-")[2] or name,
                what="check",
                condition="wrong",
                found=f"it failed itself: {type(error).__name__}",
                way_out="say so to whoever wrote it",
            )


def _there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _version(package: str) -> str:
    name = {"opentelemetry.proto": "opentelemetry-proto", "agents": "openai-agents"}.get(package, package)
    try:
        return f"{name} {version(name.replace('_', '-'))}"
    except PackageNotFoundError:
        return name


def _installed() -> str:
    try:
        summary: Any = metadata("agentguard")["Version"]
    except PackageNotFoundError:
        return f"{__version__}, not installed as a package"
    return str(summary)
