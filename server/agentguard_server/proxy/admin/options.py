"""The section ``ui`` of the proxy's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class UiOptions(BaseModel):
    """The viewer under ``/ui``; it is there where a store is configured, for keys with the scope ``read``.

    Attributes:
        enabled: whether it is there.
        store: whose runs it shows: a path or URL; null: that of ``capture``.
        evals: files and folders with kept evaluations.
        signed_in_s: seconds after which a browser must show its key again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = True
    store: Annotated[str | None, Field(min_length=1, max_length=4096, repr=False)] = None
    evals: tuple[Path, ...] = ()
    signed_in_s: Annotated[float, Field(ge=60, le=2_592_000)] = 43_200.0
