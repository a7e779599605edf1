"""Background updates of the store's search index while the viewer runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from agentguard.errors import StoreError, StoreTimeout, StoreUnavailable
from agentguard.store.store import Store

_LOG = logging.getLogger(__name__)
_MIN_AGE_S: Final = 10.0
"""Age of a change before it is indexed: a run in progress changes often, and a search reads it anyway."""
_UPDATE_S: Final = 0.25
_IDLE_S: Final = 10.0
_STOP_TIMEOUT_S: Final = 5.0


class SearchIndexUpdates:
    """Thread that adds changed runs to the search index; it uses at most half of a core.

    Args:
        store: the store.
        tenant: tenant of the runs.
        is_busy: returns True while the update has to wait, because runs are loading.
    """

    def __init__(self, store: Store, *, tenant: str, is_busy: Callable[[], bool]) -> None:
        self._store, self._tenant, self._is_busy = store, tenant, is_busy
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="agentguard-search-index", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the update in progress, at most 5 s later."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stopped.wait(pause_s):
            pause_s = _IDLE_S
            if self._is_busy():
                continue
            begin = time.monotonic()
            try:
                updated_count = self._store.update_search_index(
                    min_age_s=_MIN_AGE_S, timeout_s=_UPDATE_S, tenant=self._tenant
                )
            except (StoreUnavailable, StoreTimeout) as error:
                _LOG.info("the search index is not up to date: %s", error)
            except StoreError as error:
                _LOG.warning("%s", error)
                return
            else:
                if updated_count:
                    pause_s = time.monotonic() - begin
