"""Settings of the viewer, validated at construction."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentguard.chaos import CAMPAIGNS_FOLDER
from agentguard.errors import ConfigError
from agentguard.evals.result_file import RESULTS_FOLDER
from agentguard.loopback import is_loopback

if TYPE_CHECKING:
    from agentguard.otlp.exporter import ExportTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewerSettings:
    """Settings of the viewer.

    Attributes:
        host: address on which the server listens.
        token: token that a client must present; None disables authentication and is valid only on loopback.
        tenant: tenant that owns the runs.
        allows_feedback: whether feedback can be stored; False if the store is temporary.
        evals: files and folders with saved evaluations.
        campaigns: output folders of chaos campaigns, and folders that contain them.
        batches: paths and URLs of output folders of batch diagnoses.
        collector: OTLP collector to which the page of a run can send the run; requests cannot choose another
            one.
        default_sort: sort column of the list of runs, if the query has none.
        prefix: path under which the viewer is mounted, without a trailing slash.

    Raises:
        ConfigError: there is no token although the host is not loopback.
    """

    host: str = "127.0.0.1"
    token: str | None = None
    tenant: str = ""
    allows_feedback: bool = True
    evals: tuple[Path, ...] = (RESULTS_FOLDER,)
    campaigns: tuple[Path, ...] = (CAMPAIGNS_FOLDER,)
    batches: tuple[str, ...] = ()
    collector: ExportTarget | None = None
    default_sort: str = "time"
    prefix: str = ""

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"view: {self.host} is not a loopback address, so a token is needed; give one with --token"
            )
