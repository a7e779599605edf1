"""Causal stitching: probe, edges, cycles, confirmation, reproducers and the command."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from agentguard.bundles import read_bundle, replay_bundle
from agentguard.chaos.causality import (
    CausalEdge,
    CycleStatus,
    FaultInjection,
    FaultKind,
    FaultProbe,
    SiteFault,
    StitchingCampaign,
    StitchingResult,
    run_reproducer,
    run_workload,
    search_cycles,
)
from agentguard.chaos.causality.cycles import find_cycles, is_compatible
from agentguard.chaos.causality.edges import EffectKind, find_edges
from agentguard.chaos.causality.fault_clusters import cluster_faults, score_faults
from agentguard.cli.app import build_app
from agentguard.errors import ConfigError
from benchmarks.cascades import PLANTED, WORKLOADS, list_lasting_single_faults

EXAMPLE = "examples/chaos_cascade.yaml"
ERROR, DELAY = SiteFault("client", FaultKind.ERROR), SiteFault("server", FaultKind.DELAY)


async def call_twice(probe: FaultProbe, rng: random.Random) -> None:
    """Run an agent with a tool that it calls again after an error."""
    for _ in range(3):
        async with probe.iteration("agent"):
            for _ in range(2):
                try:
                    async with probe.iteration("tool", size=5) as call:
                        await probe.clock.sleep(rng.uniform(0.1, 0.2))
                        call.throw_point(ValueError)
                    break
                except ValueError:
                    continue
        if probe.decide("cache", False):
            probe.damp("limit")
        probe.complete()


def inject(site: str, kind: str, **options: float) -> FaultInjection:
    return FaultInjection(fault=SiteFault(site, FaultKind(kind)), **options)  # type: ignore[arg-type]


def test_workload_without_faults_has_its_sites_and_no_events() -> None:
    run = run_workload("w", call_twice, 0)
    assert run.sizes == {("agent",): 3, ("agent", "tool"): 15, ("cache",): 3}
    assert run.signatures["agent", "tool"] == {(): 3}
    assert {str(fault) for fault in run.faults} == {
        "delay@agent",
        "delay@tool",
        "error@tool",
        "negate@cache",
    }
    assert (len(run.completions), run.injected, run.damping) == (3, 0, {})


def test_error_occurs_once_and_is_an_event_of_its_iteration() -> None:
    run = run_workload("w", call_twice, 0, [inject("tool", "error")])
    assert run.signatures["agent", "tool"] == {(): 3, ("ValueError",): 1}
    assert run.injected == 1


def test_negated_decision_and_delay_change_the_run() -> None:
    profile = run_workload("w", call_twice, 0)
    run = run_workload("w", call_twice, 0, [inject("cache", "negate"), inject("tool", "delay", delay_s=2.0)])
    assert run.signatures["cache",] == {("True",): 1, ("False",): 2}
    assert run.damping == {"limit": 1}
    assert run.duration_s == pytest.approx(profile.duration_s + 2.0)


def test_injection_with_a_time_window_leaves_other_iterations() -> None:
    window = inject("tool", "delay", count=None, start_s=0.15, end_s=0.25, delay_s=1.0)  # type: ignore[arg-type]
    assert run_workload("w", call_twice, 0, [window]).injected == 1


def test_tasks_inherit_their_call_site() -> None:
    async def workload(probe: FaultProbe, rng: random.Random) -> None:
        async def serve() -> None:
            async with probe.iteration("server"):
                await probe.clock.sleep(0.1)

        async with probe.iteration("client"):
            await asyncio.create_task(serve())

    assert ("client", "server") in run_workload("w", workload, 0).sizes


def test_edges_of_an_error_are_growth_at_other_sites_only() -> None:
    async def workload(probe: FaultProbe, rng: random.Random) -> None:
        for _ in range(2):
            async with probe.iteration("server"):
                await probe.clock.sleep(0.1)
            try:
                async with probe.iteration("client") as call:
                    call.throw_point(ValueError)
                break
            except ValueError:
                continue

    seeds = range(3)
    profiles = [run_workload("w", workload, seed) for seed in seeds]
    runs = [run_workload("w", workload, seed, [inject("client", "error")]) for seed in seeds]
    (edge,) = find_edges(ERROR, profiles, runs)
    assert (edge.site, edge.effect, edge.call_sites) == ("server", EffectKind.SIZE, {("server",)})
    assert edge.own == {(("client",), ("ValueError",))}


def build_edge(cause: SiteFault, site: str, effect: EffectKind, *, call_site: str = "") -> CausalEdge:
    path = (call_site, site) if call_site else (site,)
    own_path = (cause.site,)
    return CausalEdge(
        cause=cause,
        site=site,
        effect=effect,
        workload="w",
        signatures=frozenset({(path, ("ValueError",))}),
        call_sites=frozenset({path}),
        own=frozenset({(own_path, ("ValueError",))}),
        own_call_sites=frozenset({own_path}),
    )


def test_cycle_needs_equal_call_sites() -> None:
    slow_server = build_edge(DELAY, "client", EffectKind.EXECUTION)
    retry = build_edge(ERROR, "server", EffectKind.SIZE)
    elsewhere = build_edge(ERROR, "server", EffectKind.SIZE, call_site="batch")
    (cycle,) = find_cycles([slow_server, retry, elsewhere], {})
    assert cycle.sites == {"client", "server"}
    assert str(cycle) == "delay@server –E→ error@client –S+→ delay@server"
    assert not is_compatible(elsewhere, slow_server)
    assert find_cycles([slow_server, elsewhere], {}) == []


def test_growth_is_followed_by_a_delay_with_an_execution_effect_only() -> None:
    retry = build_edge(ERROR, "server", EffectKind.SIZE)
    longer = build_edge(DELAY, "client", EffectKind.SIZE)
    assert not is_compatible(retry, longer)
    assert find_cycles([retry, longer], {}) == []


def test_faults_with_equal_consequences_form_a_cluster() -> None:
    other = SiteFault("third", FaultKind.ERROR)
    without = SiteFault("none", FaultKind.ERROR)
    edges = [build_edge(fault, "server", EffectKind.SIZE) for fault in (ERROR, other)]
    clusters = cluster_faults([ERROR, other, without], edges)
    assert sorted(map(len, clusters)) == [1, 2]
    assert score_faults(edges)[ERROR] == 0.5


@pytest.fixture(scope="module")
def result() -> StitchingResult:
    return search_cycles(StitchingCampaign.load(EXAMPLE))


def test_example_has_one_undamped_cycle_with_its_least_reproducer(result: StitchingResult) -> None:
    (one,) = result.cycles
    assert one.status is CycleStatus.UNDAMPED
    assert one.cycle.sites == {"client.attempt", "server.serve"}
    assert one.reproducer is not None
    assert one.reproducer.goodput < 0.5
    assert len(one.reproducer.injections) == 1


def test_stitch_command_writes_report_and_a_bundle_that_reproduces(tmp_path: Path) -> None:
    run = CliRunner().invoke(build_app(), ["chaos", "stitch", EXAMPLE, "--output", str(tmp_path), "--json"])
    assert run.exit_code == 1, run.output
    report = orjson.loads((tmp_path / "stitching.json").read_bytes())
    assert [one["status"] for one in report["cycles"]] == ["undamped"]
    assert "delay@server.serve" in (tmp_path / "stitching.html").read_text(encoding="utf-8")
    bundle = read_bundle(tmp_path / "cycle-1.agb")
    assert replay_bundle(bundle, run_reproducer).is_equal
    live = replay_bundle(bundle, run_reproducer, mode="decisions")
    assert (live.is_equal, live.unused_calls) == (True, 0)


def test_damped_cycle_names_its_element() -> None:
    names = ["search_once", "search_idle", "search_production"]
    campaign = StitchingCampaign.model_validate(
        {"version": 1, "workloads": names, "schedule": {"delays_s": [1.0, 2.0], "max_runs": 60}}
    )
    (one,) = search_cycles(campaign, workloads={name: WORKLOADS[name] for name in names}).cycles
    assert (one.status, one.damping) == (CycleStatus.DAMPED, ("retry_budget",))


@pytest.mark.slow
def test_search_finds_the_planted_cascades_that_single_faults_do_not_show() -> None:
    campaign = StitchingCampaign.model_validate(
        {"version": 1, "workloads": list(WORKLOADS), "schedule": {"delays_s": [1.0, 2.0], "repeats": 2}}
    )
    found = {one.cycle.sites for one in search_cycles(campaign, workloads=WORKLOADS).undamped}
    planted = {frozenset(sites) for sites in PLANTED.values()}
    assert len(found & planted) >= 7
    assert len(found - planted) <= 1
    assert list_lasting_single_faults(campaign) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: 1\nworkloads: []\n", "workloads"),
        ("version: 1\nworkloads: [a:b, a:b]\n", "a workload occurs twice"),
        ("version: 1\nworkloads: [examples.nothing:run]\n", "examples.nothing:run cannot be imported"),
        ("version: 1\nworkloads: [a:b]\nschedule: {delays: [1]}\n", "schedule.delays"),
    ],
)
def test_campaign_with_a_wrong_field_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "campaign.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        search_cycles(StitchingCampaign.load(file))
