"""The pages of chaos campaigns, without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agentguard_server.cmd_view import classify_sources
from agentguard_server.viewer.app import build_app
from agentguard_server.viewer.data.report_folders import CampaignFolders
from agentguard_server.viewer.settings import ViewerSettings
from starlette.testclient import TestClient

from agentguard.chaos import render_campaign_parts
from agentguard.chaos.campaign_runner import JOURNAL
from agentguard.chaos.causality import (
    CycleStatus,
    StitchingReport,
    encode_stitching_report,
    render_stitching_parts,
)
from agentguard.chaos.causality.stitching_report import REPORT_FILE, CycleSummary
from agentguard.store import Store
from tests.viewer_server import write_campaign

EVIL = "<script>window.pwned=1</script>"


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the output folder of a campaign with an unsafe run."""
    return write_campaign(tmp_path_factory.mktemp("chaos") / "booking")


@pytest.fixture
def client(tmp_path: Path, campaign: Path) -> Iterator[TestClient]:
    with Store.open(tmp_path / "store.db") as store:
        app = build_app(store, ViewerSettings(campaigns=(campaign.parent, tmp_path / "absent")))
        with TestClient(app, base_url="http://127.0.0.1") as opened:
            yield opened


@pytest.fixture
def journal(campaign: Path) -> Iterator[Path]:
    """Return the journal of the campaign; its content is restored after the test."""
    file = campaign / JOURNAL
    content = file.read_bytes()
    yield file
    file.write_bytes(content)


def find_path(client: TestClient) -> str:
    (found,) = client.get("/api/campaigns").json()["campaigns"]
    return f"/campaigns/{found['id']}"


def test_list_names_campaign_with_its_outcomes(client: TestClient) -> None:
    page = client.get("/campaigns")
    assert page.status_code == 200
    assert f'href="{find_path(client)}"' in page.text
    assert '<td class="bad">unsafe</td>' in page.text


def test_page_has_the_parts_of_the_report(client: TestClient, campaign: Path) -> None:
    page = client.get(find_path(client))
    (found,) = CampaignFolders([campaign]).list_campaigns()
    assert found.report is not None
    assert page.status_code == 200
    assert "".join(render_campaign_parts(found.report)) in page.text
    assert client.get(f"/api{find_path(client)}").json()["report"] == found.report.to_dict()


def test_page_of_running_campaign_shows_the_count(client: TestClient, journal: Path) -> None:
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:2]))
    assert "1 of 4 planned runs are done" in client.get(find_path(client)).text


def test_broken_journal_is_named(client: TestClient, journal: Path) -> None:
    journal.write_bytes(b'{"campaign":"x","planned":1}\n{"site":1}\n')
    assert "cannot be read" in client.get("/campaigns").text
    assert "is not a journal of a campaign" in client.get(find_path(client)).text


def test_names_are_escaped(client: TestClient, journal: Path) -> None:
    journal.write_bytes(journal.read_bytes().replace(b'"tool:book"', f'"{EVIL}"'.encode()))
    page = client.get(find_path(client)).text
    assert EVIL not in page
    assert "&lt;script&gt;" in page


def test_missing_campaign_is_reported(client: TestClient) -> None:
    assert client.get("/campaigns/0123").status_code == 404
    assert client.get("/api/campaigns/0123").status_code == 404


def test_no_campaign_shows_instructions(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        app = build_app(store, ViewerSettings(campaigns=(tmp_path / "absent",)))
        with TestClient(app, base_url="http://127.0.0.1") as client:
            assert "agentguard chaos run" in client.get("/campaigns").text


def test_view_argument_with_journal_is_a_campaign(campaign: Path) -> None:
    sources = classify_sources([str(campaign), str(campaign.parent)], None)
    assert (sources.campaigns, sources.runs) == ((campaign,), (campaign.parent,))


def test_cycles_are_listed_and_shown(tmp_path: Path) -> None:
    cycle = CycleSummary(
        cycle=f"delay@server.serve {EVIL}",
        sites=("server.serve",),
        workloads=("busy",),
        status=CycleStatus.UNDAMPED,
        damping=(),
        goodput=0.0,
        reproducer="production, seed 0",
    )
    report = StitchingReport(runs=36, sites=2, edges=3, cycles=(cycle,))
    folder = tmp_path / "chaos" / "cascade"
    folder.mkdir(parents=True)
    (folder / REPORT_FILE).write_bytes(encode_stitching_report(report))
    (tmp_path / "chaos" / "broken").mkdir()
    (tmp_path / "chaos" / "broken" / REPORT_FILE).write_bytes(b'{"runs": 1}')
    assert classify_sources([str(folder)], None).campaigns == (folder,)
    with Store.open(tmp_path / "store.db") as store:
        app = build_app(store, ViewerSettings(campaigns=(tmp_path / "chaos",)))
        with TestClient(app, base_url="http://127.0.0.1") as client:
            (found,) = (one for one in CampaignFolders([folder]).list_searches())
            assert (found.report, found.name) == (report, "cascade")
            listed = client.get("/campaigns").text
            assert f'href="/campaigns/cycles/{found.id}"' in listed
            assert "is not a report of causal cycles: sites" in listed
            page = client.get(f"/campaigns/cycles/{found.id}")
            assert "".join(render_stitching_parts(report)) in page.text
            assert EVIL not in page.text
            assert client.get("/campaigns/cycles/0123").status_code == 404
