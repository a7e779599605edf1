"""pytest plug-in: the fixture ``chaos`` runs a campaign on an agent and fails the test for unsafe runs.

```python
@pytest.mark.chaos(tool=["timeout", "after_commit_crash"])
def test_booking_survives_faults(chaos):
    report = chaos(book_seat)
    assert report.outcomes["failed"] == 0
```
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from agentguard.bundles.bindings import RecordableAgent
    from agentguard.chaos.campaign_report import CampaignReport


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "chaos(tool=…, model=…, guard=…, effects=…, repeats=1): faults and options of the fixture `chaos`",
    )


@pytest.fixture
def chaos(request: pytest.FixtureRequest) -> Callable[[RecordableAgent], CampaignReport]:
    """Return a function that runs a campaign on an agent and returns its report.

    The function fails the test if a run is unsafe: repeated or wrong effects, or a false claim.
    """
    # A plug-in is imported in each pytest run, so it imports agentguard only if a test uses the fixture.
    from agentguard.chaos.campaign import Campaign
    from agentguard.chaos.campaign_report import build_campaign_report
    from agentguard.chaos.campaign_runner import CampaignRunner

    marker = request.node.get_closest_marker("chaos")
    options: dict[str, Any] = dict(marker.kwargs) if marker is not None else {}
    schedule = {name: options.pop(name) for name in ("repeats", "seed", "max_runs") if name in options}
    target = {"agent": "tests:agent", "effects": options.pop("effects", None)}
    campaign = Campaign.model_validate(
        {"version": 1, "target": target, "faults": options, "schedule": schedule}
    )

    def run_campaign(agent: RecordableAgent) -> CampaignReport:
        report = build_campaign_report(CampaignRunner(campaign, agent=agent).run())
        unsafe = [f"{cell.fault} at {cell.site}" for cell in report.cells if cell.worst == "unsafe"]
        if unsafe:
            pytest.fail(f"unsafe runs with {', '.join(unsafe)}", pytrace=False)
        return report

    return run_campaign
