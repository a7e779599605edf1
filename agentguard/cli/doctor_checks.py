"""Checks of an installation, with a remedy for each problem."""

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

from agentguard.errors import AgentGuardError, MissingExtra
from agentguard.plugins import Registry
from agentguard.version import __version__

Condition = Literal["ok", "note", "wrong"]

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "serve": ("uvicorn", "httptools", "prometheus_client", "starlette"),
    "store": ("sqlalchemy", "alembic"),
    "postgres": ("psycopg",),
    "view": ("jinja2", "starlette", "uvicorn"),
    "chat": ("openai",),
    "vllm": ("vllm",),
    "otel": ("httpx2", "opentelemetry.proto"),
    "traces": ("httpx2",),
    "langchain": ("langchain", "langgraph"),
    "openai-agents": ("agents",),
    "pydantic-ai": ("pydantic_ai",),
    "claude-agent-sdk": ("claude_agent_sdk",),
    "crewai": ("crewai",),
    "google-adk": ("google.adk",),
    "smolagents": ("smolagents",),
    "httpx": ("httpx", "httpx2"),
    "inspect": ("inspect_ai",),
    "atif": ("atif",),
    "parquet": ("pyarrow",),
    "batch": ("pyarrow", "fsspec", "zstandard"),
    "ray": ("ray",),
    "embeddings": ("sentence_transformers",),
}
"""Packages of each extra, by the names under which they are imported."""

_YEAR_2024: Final = 1_704_067_200


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of one check.

    Attributes:
        area: area of the check.
        what: subject of the check.
        condition: ``note`` is information without a problem.
        found: result, without secrets.
        remedy: remedy; empty if none is needed.
    """

    area: str
    what: str
    condition: Condition
    found: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """Scope of the checks.

    Attributes:
        config: the proxy's configuration; None to skip it.
        store: path or URL of a store; None: the default store, if it exists.
        network: whether to contact the configured endpoints.
        timeout_s: maximum wait for one endpoint.
        probe: whether to ask chat judges about the reference runs, as ``agentguard judge check`` does.
    """

    config: Path | None = None
    store: str | None = None
    network: bool = True
    timeout_s: float = 5.0
    probe: bool = False


CheckFunction = Callable[[CheckContext], Iterator[CheckResult]]


def check_registry() -> Registry[CheckFunction]:
    """Return the registry of checks: built-in ones, including those of the proxy, and installed ones."""
    return _CHECK_REGISTRY


_CHECK_REGISTRY: Registry[CheckFunction] = Registry(
    "check",
    group="agentguard.checks",
    builtin={
        "1-python": f"{__name__}:check_python",
        "2-extras": f"{__name__}:check_extras",
        "3-model": f"{__name__}:check_model",
        "4-store": f"{__name__}:check_store",
        "5-proxy": "agentguard_server.proxy.diagnostics.doctor:check_proxy",
    },
)


def check_python(_: CheckContext) -> Iterator[CheckResult]:
    """Check the interpreter, the package and the clock."""
    version = f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}"
    is_supported = sys.version_info >= (3, 11)
    remedy = "" if is_supported else "install Python 3.11 or later"
    yield CheckResult(
        area="python",
        what="version",
        condition="ok" if is_supported else "wrong",
        found=version,
        remedy=remedy,
    )
    yield CheckResult(area="python", what="agentguard", condition="ok", found=_get_installed_version())
    is_clock_wrong = time.time() < _YEAR_2024
    yield CheckResult(
        area="python",
        what="clock",
        condition="wrong" if is_clock_wrong else "ok",
        found=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        remedy="set this machine's clock; TLS certificates and logs depend on it" if is_clock_wrong else "",
    )


def check_extras(_: CheckContext) -> Iterator[CheckResult]:
    """Report the installed extras; a missing extra is not a problem."""
    for extra, packages in EXTRAS.items():
        missing_packages = [package for package in packages if not _is_installed(package)]
        if not missing_packages:
            yield CheckResult(
                area="extras", what=extra, condition="ok", found=", ".join(map(_format_version, packages))
            )
            continue
        yield CheckResult(
            area="extras",
            what=extra,
            condition="note",
            found=f"{', '.join(missing_packages)} not installed",
            remedy=f"to use it: pip install 'agentguard[{extra}]'",
        )


def check_model(_: CheckContext) -> Iterator[CheckResult]:
    """Check that the model file of the embedded judge exists, is unchanged and can be loaded."""
    from agentguard.judge.embedded.model_card import load_card
    from agentguard.judge.embedded.model_io import load_model

    try:
        card = load_card()
        load_model()
    except AgentGuardError as error:
        yield CheckResult(
            area="model",
            what="embedded judge",
            condition="wrong",
            found=str(error),
            remedy="install agentguard again, or train a model: agentguard judge train",
        )
        return
    digest = str(card.get("sha256", ""))[:12]
    yield CheckResult(area="model", what="embedded judge", condition="ok", found=f"valid, sha256 {digest}…")


def check_store(context: CheckContext) -> Iterator[CheckResult]:
    """Check that the store is reachable, of this version and writable."""
    if not _is_installed("sqlalchemy"):
        yield CheckResult(
            area="store", what="store", condition="note", found="not installed",
            remedy="to use it: pip install 'agentguard[store]'",
        )  # fmt: skip
        return
    from agentguard.store.db.database_address import resolve_address
    from agentguard.store.default_location import ENVIRONMENT_VARIABLE

    try:
        address = resolve_address(context.store)
    except AgentGuardError as error:
        yield CheckResult(area="store", what="address", condition="wrong", found=str(error),
                   remedy=f"give --store, or set {ENVIRONMENT_VARIABLE}")  # fmt: skip
        return
    if (
        address.path is not None
        and not address.path.exists()
        and (context.store or ENVIRONMENT_VARIABLE in os.environ)
    ):
        remedy = "correct the path, or create the store: agentguard store init"
        yield CheckResult(
            area="store", what=str(address), condition="wrong", found="it does not exist", remedy=remedy
        )
        return
    yield check_store_access(context.store)


def check_store_access(url: str | None) -> CheckResult:
    """Check that a store can be opened. A missing store is not created."""
    from agentguard.errors import StoreVersion
    from agentguard.store.db.database_address import resolve_address
    from agentguard.store.db.migration import REVISIONS
    from agentguard.store.options import StoreOptions
    from agentguard.store.store import Store

    name = "store"
    try:
        address = resolve_address(url)
        name = str(address)
        if address.path is not None and not address.path.exists():
            return _check_new_store_path(address.path)
        with Store.open(url, options=StoreOptions(lock_timeout_s=2.0)) as opened_store:
            runs = opened_store.get_stats(tenant=None).rows.get("runs", 0)
    except StoreVersion as error:
        remedy = "copy the store, then run: agentguard store migrate"
        return CheckResult(area="store", what=name, condition="wrong", found=str(error), remedy=remedy)
    except AgentGuardError as error:
        remedy = "check that the database runs, and its address and password"
        return CheckResult(area="store", what=name, condition="wrong", found=str(error), remedy=remedy)
    return CheckResult(
        area="store", what=name, condition="ok", found=f"version {REVISIONS[-1]}, {runs:,} runs"
    )


def _check_new_store_path(path: Path) -> CheckResult:
    """Check that a store can be created at a path."""
    folder = next(one for one in path.parents if one.exists())
    if not os.access(folder, os.W_OK):
        remedy = f"give this user write access to {folder}, or use another path"
        return CheckResult(
            area="store", what=str(path), condition="wrong", found="it cannot be created", remedy=remedy
        )
    remedy = "the first use creates it; so does: agentguard store init"
    return CheckResult(
        area="store", what=str(path), condition="note", found="it does not exist yet", remedy=remedy
    )


def run_checks(context: CheckContext) -> Iterator[CheckResult]:
    """Yield the results of all checks, in order; a check that raises yields a result too."""
    for name in check_registry():
        try:
            yield from check_registry().get(name)(context)
        except (ModuleNotFoundError, MissingExtra) as error:
            package = error.name if isinstance(error, ModuleNotFoundError) else str(error).partition(" ")[0]
            yield CheckResult(
                area=name.partition("-")[2] or name,
                what="check",
                condition="note" if context.config is None else "wrong",
                found=f"{package} is not installed",
                remedy="install its extra (see extras)",
            )
        except Exception as error:  # a plug-in may raise anything; the other checks continue
            yield CheckResult(
                area=name.partition("-")[2] or name,
                what="check",
                condition="wrong",
                found=f"the check raised {type(error).__name__}",
                remedy="report the error to the author of the check",
            )


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _format_version(package: str) -> str:
    name = {
        "google.adk": "google-adk",
        "opentelemetry.proto": "opentelemetry-proto",
        "agents": "openai-agents",
    }.get(package, package)
    try:
        return f"{name} {version(name.replace('_', '-'))}"
    except PackageNotFoundError:
        return name


def _get_installed_version() -> str:
    try:
        summary: Any = metadata("agentguard")["Version"]
    except PackageNotFoundError:
        return f"{__version__}, not installed as a package"
    return str(summary)
