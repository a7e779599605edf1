"""Base class of the built-in detectors: name, taxonomy codes, declared options and a finding builder."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, ClassVar

from agentguard.detect.base import NO_REQUIREMENTS, Evidence, Finding, RunRequirements
from agentguard.detect.run_content import RunContent
from agentguard.detect.run_view import RunView
from agentguard.errors import ConfigError
from agentguard.options import Options, parse_options
from agentguard.trajectory.model import Source, Step

NO_FINDINGS: tuple[Finding, ...] = ()


class BaseDetector:
    """Base of the built-in detectors, with the defaults of `Detector`; a plug-in need not derive from it.

    Attributes:
        name: name of the detector.
        summary: faults that it finds, in one sentence; a test compares the table in the docs with it.
        codes: qualified taxonomy codes of its findings, the most specific first.
        default_options: its options with their defaults.
        options: the options of this detector.
        is_stateless: see `Detector.is_stateless`.
        requirements: see `Detector.requirements`; `agentguard.detect.runner.build_detectors` omits a detector
            with default options if a recorded run does not have that data.
        observed_sources: see `Detector.observed_sources`; a detector that has nothing to check sets it empty.
        checks_proposed: True in a subclass that overrides `check_proposed`.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    codes: ClassVar[tuple[str, ...]] = ()
    default_options: ClassVar[Options] = Options()
    is_stateless: ClassVar[bool] = False
    requirements: ClassVar[RunRequirements] = NO_REQUIREMENTS
    observed_sources: Collection[Source] = (Source.AGENT,)
    checks_proposed: ClassVar[bool] = False
    options: Options

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.checks_proposed = cls.check_proposed is not BaseDetector.check_proposed

    def __init__(self, **options: Any) -> None:
        defaults = self.default_options
        self.options = parse_options(defaults, options, f"detector {self.name}") if options else defaults

    @classmethod
    def can_find(cls, content: RunContent) -> bool:
        """Return False if the detector with default options has no finding for a finished run.

        The runner omits such a detector. The method may return True for a run without a fault.
        """
        del content
        return True

    def observe(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Return no findings; see `Detector.observe`."""
        del step, view
        return NO_FINDINGS

    def check_proposed(self, step: Step, view: RunView) -> Iterable[Finding]:
        """Return no findings; see `Detector.check_proposed`."""
        del step, view
        return NO_FINDINGS

    def finish(self, view: RunView) -> Iterable[Finding]:
        """Return no findings; see `Detector.finish`."""
        del view
        return NO_FINDINGS

    def build_option_error(self, option: str, problem: str) -> ConfigError:
        """Return the error for an invalid value inside an option; the text names detector and option."""
        return ConfigError(f"detector {self.name}.{option}: {problem}")

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
        """Build a finding.

        ``details`` may set ``codes`` and ``noticed_at``, the rest becomes its ``data``.
        """
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
