"""Taxonomies of failures and the crosswalk between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.taxonomy.catalog import TaxonomyCatalog as TaxonomyCatalog
    from agentguard.taxonomy.model import (
        Crosswalk as Crosswalk,
    )
    from agentguard.taxonomy.model import (
        CrosswalkLink as CrosswalkLink,
    )
    from agentguard.taxonomy.model import (
        Group as Group,
    )
    from agentguard.taxonomy.model import (
        Relation as Relation,
    )
    from agentguard.taxonomy.model import (
        Taxonomy as Taxonomy,
    )
    from agentguard.taxonomy.model import (
        TaxonomyCode as TaxonomyCode,
    )

_EXPORTS = {
    "Crosswalk": "agentguard.taxonomy.model",
    "CrosswalkLink": "agentguard.taxonomy.model",
    "Group": "agentguard.taxonomy.model",
    "Relation": "agentguard.taxonomy.model",
    "Taxonomy": "agentguard.taxonomy.model",
    "TaxonomyCatalog": "agentguard.taxonomy.catalog",
    "TaxonomyCode": "agentguard.taxonomy.model",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
