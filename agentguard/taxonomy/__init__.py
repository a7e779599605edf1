"""Taxonomies of failures and the crosswalk between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.taxonomy.catalog import TaxonomyCatalog
    from agentguard.taxonomy.model import Crosswalk, CrosswalkLink, Group, Relation, Taxonomy, TaxonomyCode

_EXPORTS = {
    "Crosswalk": "agentguard.taxonomy.model",
    "CrosswalkLink": "agentguard.taxonomy.model",
    "Group": "agentguard.taxonomy.model",
    "Relation": "agentguard.taxonomy.model",
    "Taxonomy": "agentguard.taxonomy.model",
    "TaxonomyCatalog": "agentguard.taxonomy.catalog",
    "TaxonomyCode": "agentguard.taxonomy.model",
}

__all__ = [
    "Crosswalk",
    "CrosswalkLink",
    "Group",
    "Relation",
    "Taxonomy",
    "TaxonomyCatalog",
    "TaxonomyCode",
]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
