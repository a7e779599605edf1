"""Titles of codes on the pages."""

from agentguard_server.viewer.formatting import find_code_title

from agentguard.taxonomy.catalog import TaxonomyCatalog


def test_titles_of_codes_are_unique():
    codes = [code.qualified_id for taxonomy in TaxonomyCatalog.load() for code in taxonomy.codes]
    titles = [find_code_title(code).title for code in codes]
    assert len(set(titles)) == len(titles)


def test_shared_title_names_the_taxonomy():
    title = find_code_title("trail:tool_output_misinterpretation").title
    assert title == "Tool output misread (trail)"


def test_unknown_code_is_its_own_title():
    assert find_code_title("mine:unknown").title == "mine:unknown"
