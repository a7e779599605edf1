"""What the built-in detectors have in common: a name, codes, declared options and findings made one way."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, ClassVar

from agentguard.detect.base import NO_REQUIREMENTS, Evidence, Finding, RunRequirements
from agentguard.detect.options import DetectorOption, DetectorOptions
from agentguard.detect.run_view import RunView
from agentguard.trajectory.model import Source, Step

NO_FINDINGS: tuple[Finding, ...] = ()


class BaseDetector:
    """Base of the built-in detectors; a detector need not derive from it.

    Attributes:
        name: of the detector.
        sees: what it notices, in a sentence; the documentation's table is checked against it.
        codes: qualified taxonomy codes of its findings, the most specific first.
        declared: its options.
        watches: sources of the steps that `observe` must be called for; `Watcher` calls it for no other. A
            detector with nothing to do, for want of options, sets it empty.
        foresees_all: `observe` finds in a turn just what `foresee` finds, and remembers nothing: of a turn
            that was judged before its tools ran it need not be asked again. It may look at the text and the
            calls of the turn, and at nothing that came back.
        needs: what a run must have for a finding, where the options have their defaults; a recorded run that
            has less is not shown to it then (`agentguard.detect.runner.build_detectors`).
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    codes: ClassVar[tuple[str, ...]] = ()
    declared_options: ClassVar[tuple[DetectorOption, ...]] = ()
    is_stateless: ClassVar[bool] = False
    requirements: ClassVar[RunRequirements] = NO_REQUIREMENTS
    observed_sources: Collection[Source] = (Source.AGENT,)

    def __init__(self, **options: Any) -> None:
        kind = type(self)
        self.options = (
            DetectorOptions(kind.name, kind.declared_options, options) if options else _default_options(kind)
        )

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Look at one more step. The default sees nothing."""
        del step, view
        return NO_FINDINGS

    def finish(self, view: RunView) -> Iterable[Finding]:
        """Look at the run once it has ended. The default sees nothing."""
        del view
        return NO_FINDINGS

    def build_finding(
        self,
        step: Step,
        probability: float,
        message: str,
        *,
        correction: str,
        evidence: tuple[Evidence, ...] = (),
        **details: Any,
    ) -> Finding:
        """Make a finding; ``more`` may give ``codes`` and ``noticed_at``, all else of it is ``data``."""
        return Finding(
            detector=self.name,
            step=step.index,
            codes=details.pop("codes", self.codes),
            probability=probability,
            message=message,
            evidence=evidence,
            correction=correction,
            noticed_at=details.pop("noticed_at", step.index),
            data=details,
        )


def _default_options(kind: type[BaseDetector]) -> DetectorOptions:
    """The options of a detector that is given none: they never change, and it is made anew for each run."""
    known = _DEFAULT_OPTIONS.get(kind)
    if known is None:
        known = _DEFAULT_OPTIONS[kind] = DetectorOptions(kind.name, kind.declared_options, {})
    return known


_DEFAULT_OPTIONS: dict[type[BaseDetector], DetectorOptions] = {}
