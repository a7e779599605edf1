from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentguard.errors import TaxonomyError
from agentguard.taxonomy.catalog import FOLDERS_VARIABLE, TaxonomyCatalog
from agentguard.taxonomy.model import Crosswalk, CrosswalkLink, Relation

MINE = """\
name: mine
title: Mine
version: "1"
summary: A taxonomy for a test.
source: {work: Ourselves}
codes: [{id: too_loud, title: Too loud, definition: It shouts.}]
"""
WALK = 'version: "1"\nlinks: [{from: "mine:too_loud", relation: narrow, to: "mast:step_repetition"}]\n'

# As the project's other parts write them.
CODES = {
    "agent_error": """memory.over_simplification memory.retrieval_failure memory.hallucination
        reflection.progress_misjudge reflection.outcome_misinterpretation reflection.causal_misattribution
        reflection.hallucination planning.constraint_ignorance planning.impossible_action
        planning.inefficient_plan action.misalignment action.invalid_action action.format_error
        action.parameter_error system.step_limit
        system.tool_execution_error system.llm_limit system.environment_error""",
    "mast": """disobey_task_specification disobey_role_specification step_repetition
        loss_of_conversation_history unaware_of_termination conversation_reset fail_to_ask_for_clarification
        task_derailment information_withholding ignored_other_agents_input reasoning_action_mismatch
        premature_termination no_or_incomplete_verification incorrect_verification""",
    "agentrx": """instruction_adherence_failure invention_of_new_information invalid_invocation
        misinterpretation_of_tool_output intent_plan_misalignment underspecified_user_intent
        intent_not_supported guardrails_triggered system_failure""",
    "trail": """language_only tool_related poor_information_retrieval tool_output_misinterpretation
        incorrect_problem_identification tool_selection_errors formatting_errors instruction_non_compliance
        tool_definition_issues environment_setup_errors rate_limiting authentication_errors service_errors
        resource_not_found resource_exhaustion timeout_issues context_handling_failures resource_abuse
        goal_deviation task_orchestration""",
    "fault_model": """degraded_accuracy degraded_availability crash omission timing response
        fail_silence_violation soft_error silent_corruption""",
    "response_safety": "safe unsafe conditionally_safe focused_attention",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.yaml").write_text(MINE)
    (tmp_path / "crosswalk.yaml").write_text(WALK)
    return tmp_path


@pytest.mark.parametrize("name", sorted(CODES))
def test_shipped_taxonomies_have_exactly_their_codes(name: str) -> None:
    assert {code.id for code in TaxonomyCatalog.load().get_taxonomy(name).codes} == set(CODES[name].split())


def test_shipped_codes_are_complete() -> None:
    known = TaxonomyCatalog.load()
    for taxonomy in known:
        assert taxonomy.source.work
        for code in taxonomy.codes:
            assert code.examples, code.qualified_id
            assert code.correction or code.qualified_id == "response_safety:safe"
            if taxonomy.name == "agent_error":
                assert code.module == code.group == code.id.partition(".")[0]


def test_every_agent_failure_code_has_a_link() -> None:
    known = TaxonomyCatalog.load()
    lonely = {
        code.qualified_id
        for name in ("agent_error", "mast", "agentrx", "trail")
        for code in known.get_taxonomy(name).codes
        if not known.map_code(code.qualified_id)
    }
    assert lonely <= {"trail:poor_information_retrieval"}


def test_codes_have_titles_and_typos_get_a_suggestion() -> None:
    known = TaxonomyCatalog.load()
    assert (
        known.get_code("mast:step_repetition").title
        == known.get_title("mast:step_repetition")
        == "Steps repeated"
    )
    assert known.get_title("someone:else") == "someone:else"
    assert known.get_title("mast:nothing") == "mast:nothing"
    with pytest.raises(TaxonomyError, match="did you mean mast:step_repetition"):
        known.get_code("mast:step_repetitions")
    with pytest.raises(TaxonomyError, match="taxonomy show mast"):
        known.get_code("mast:qqqqqqqq")
    with pytest.raises(TaxonomyError, match="there are: agent_error"):
        known.get_taxonomy("nope")
    with pytest.raises(TaxonomyError, match="write <taxonomy>:<code>"):
        known.get_code("step_repetition")


def test_map_works_in_both_directions() -> None:
    known = TaxonomyCatalog.load()
    forth = known.map_code("mast:premature_termination", to="agent_error")
    assert [(link.relation, link.target) for link in forth] == [
        (Relation.BROAD, "agent_error:reflection.progress_misjudge"),
        (Relation.RELATED, "agent_error:system.step_limit"),
    ]
    back = known.map_code("agent_error:reflection.progress_misjudge", to="mast")
    assert (Relation.NARROW, "mast:premature_termination") in [(one.relation, one.target) for one in back]
    assert known.map_code("agent_error:memory.hallucination", to="fault_model") == ()
    with pytest.raises(TaxonomyError):
        known.map_code("mast:step_repetition", to="nope")


def test_crosswalk_is_symmetric() -> None:
    catalog = TaxonomyCatalog.load()
    crosswalk = catalog.crosswalk
    links = {
        link
        for taxonomy in catalog
        for code in taxonomy.codes
        for link in crosswalk.list_links(code.qualified_id)
    }
    assert len(links) == len(crosswalk) > 100
    assert {link.invert() for link in links} == links


def test_duplicate_pair_keeps_its_closest_relation() -> None:
    loose = CrosswalkLink(source="a:x", relation=Relation.RELATED, target="b:y")
    tight = CrosswalkLink(source="b:y", relation=Relation.CLOSE, target="a:x")
    for order in ((loose, tight), (tight, loose)):
        (link,) = Crosswalk(order).list_links("a:x")
        assert link.relation is Relation.CLOSE


def test_additional_file_is_found(folder: Path) -> None:
    known = TaxonomyCatalog.load(folder)
    assert known.get_title("mine:too_loud") == "Too loud"
    (link,) = known.map_code("mine:too_loud")
    assert (link.relation, link.target) == (Relation.NARROW, "mast:step_repetition")
    assert "mine:too_loud" in {one.target for one in known.map_code("mast:step_repetition")}
    assert "mine" not in TaxonomyCatalog.load().names()


def test_folders_come_from_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDERS_VARIABLE, os.pathsep.join([str(folder), str(folder)]))
    assert "mine" in TaxonomyCatalog.load().names()


def test_duplicate_name_and_missing_folder_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "mast.yaml").write_text(MINE.replace("name: mine", "name: mast"))
    with pytest.raises(TaxonomyError, match="taken"):
        TaxonomyCatalog.load(tmp_path)
    with pytest.raises(TaxonomyError, match="no such folder"):
        TaxonomyCatalog.load(tmp_path / "none")


def test_link_to_missing_code_is_rejected(folder: Path) -> None:
    (folder / "crosswalk.yaml").write_text(WALK.replace("step_repetition", "step_repitition"))
    with pytest.raises(TaxonomyError) as caught:
        TaxonomyCatalog.load(folder).map_code("mine:too_loud")
    assert caught.value.field == "links[0].to"
    assert "did you mean" in str(caught.value)


def test_invalid_file_is_read_only_on_use(folder: Path) -> None:
    (folder / "crosswalk.yaml").unlink()
    (folder / "mine.yaml").write_text("name: mine\n")
    known = TaxonomyCatalog.load(folder)
    assert known.get_title("mast:step_repetition")
    with pytest.raises(TaxonomyError):
        known.get_title("mine:too_loud")


def test_load_is_cached() -> None:
    assert TaxonomyCatalog.load() is TaxonomyCatalog.load()
