"""What a server of ours goes by, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentguard.errors import ConfigError
from agentguard.evals.result_file import RESULTS_FOLDER
from agentguard_server.net import is_loopback

if TYPE_CHECKING:
    from agentguard.otlp.exporter import ExportTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewerSettings:
    """How the viewer is served.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 lets the system choose.
        token: what a browser must show; None asks for nothing, which is allowed on loopback alone.
        tenant: whose runs are shown.
        may_judge: whether judgements can be kept: False where the store is gone when the viewer ends.
        evals: files and folders in which kept evaluations are looked for.
        collector: where the page of a run can send it; no browser can name another address.
        prefix: path under which the viewer is mounted, without a slash at its end.

    Raises:
        ConfigError: no token off loopback.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    tenant: str = ""
    allows_feedback: bool = True
    evals: tuple[Path, ...] = (RESULTS_FOLDER,)
    collector: ExportTarget | None = None
    prefix: str = ""

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(f"view: off loopback ({self.host}) a token is needed; give one with --token")


__all__ = ["ViewerSettings", "is_loopback"]
