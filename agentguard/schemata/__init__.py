"""Error schemata: distillation from earlier failures, retrieval by similarity, and a live cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.schemata.cache_policy import CachePolicy as CachePolicy
    from agentguard.schemata.distillation.distiller import (
        EmbeddedDistiller as EmbeddedDistiller,
        FailureLocation as FailureLocation,
    )
    from agentguard.schemata.distillation.llm_distiller import LLMDistiller as LLMDistiller
    from agentguard.schemata.index import SchemaIndex as SchemaIndex
    from agentguard.schemata.induction.clustering import propose_codes as propose_codes
    from agentguard.schemata.induction.taxonomy_writer import (
        accept_proposals as accept_proposals,
        format_taxonomy as format_taxonomy,
    )
    from agentguard.schemata.live_cache import SchemaCache as SchemaCache
    from agentguard.schemata.merge import merge_schemata as merge_schemata
    from agentguard.schemata.model import (
        ErrorSchema as ErrorSchema,
        Match as Match,
        Profile as Profile,
        Provenance as Provenance,
        SchemaOrigin as SchemaOrigin,
        SchemaStatus as SchemaStatus,
    )
    from agentguard.schemata.persistence import (
        FileSchemaStore as FileSchemaStore,
        SqlSchemaStore as SqlSchemaStore,
        load_schemata as load_schemata,
    )
    from agentguard.schemata.profiles.delexicalization import (
        Delexicalizer as Delexicalizer,
        delexicalize as delexicalize,
    )
    from agentguard.schemata.profiles.step_profile import (
        profile_run as profile_run,
        profile_steps as profile_steps,
    )
    from agentguard.schemata.selection import select_schemata as select_schemata
    from agentguard.schemata.serialization import (
        read_schemata as read_schemata,
        write_schemata as write_schemata,
    )
    from agentguard.schemata.vectors.base import (
        HashingVectoriser as HashingVectoriser,
        Vectoriser as Vectoriser,
        vectorisers as vectorisers,
    )
    from agentguard.schemata.vectors.embedding_client import EndpointEmbedding as EndpointEmbedding
    from agentguard.schemata.vectors.sentence_embeddings import SentenceEmbedding as SentenceEmbedding
    from agentguard.schemata.vectors.tfidf_svd import TfidfSvd as TfidfSvd

_EXPORTS = {
    "CachePolicy": "agentguard.schemata.cache_policy",
    "Delexicalizer": "agentguard.schemata.profiles.delexicalization",
    "EmbeddedDistiller": "agentguard.schemata.distillation.distiller",
    "EndpointEmbedding": "agentguard.schemata.vectors.embedding_client",
    "ErrorSchema": "agentguard.schemata.model",
    "FailureLocation": "agentguard.schemata.distillation.distiller",
    "FileSchemaStore": "agentguard.schemata.persistence",
    "HashingVectoriser": "agentguard.schemata.vectors.base",
    "LLMDistiller": "agentguard.schemata.distillation.llm_distiller",
    "Match": "agentguard.schemata.model",
    "Profile": "agentguard.schemata.model",
    "Provenance": "agentguard.schemata.model",
    "SchemaCache": "agentguard.schemata.live_cache",
    "SchemaIndex": "agentguard.schemata.index",
    "SchemaOrigin": "agentguard.schemata.model",
    "SchemaStatus": "agentguard.schemata.model",
    "SentenceEmbedding": "agentguard.schemata.vectors.sentence_embeddings",
    "SqlSchemaStore": "agentguard.schemata.persistence",
    "TfidfSvd": "agentguard.schemata.vectors.tfidf_svd",
    "Vectoriser": "agentguard.schemata.vectors.base",
    "accept_proposals": "agentguard.schemata.induction.taxonomy_writer",
    "delexicalize": "agentguard.schemata.profiles.delexicalization",
    "format_taxonomy": "agentguard.schemata.induction.taxonomy_writer",
    "load_schemata": "agentguard.schemata.persistence",
    "merge_schemata": "agentguard.schemata.merge",
    "profile_run": "agentguard.schemata.profiles.step_profile",
    "profile_steps": "agentguard.schemata.profiles.step_profile",
    "propose_codes": "agentguard.schemata.induction.clustering",
    "read_schemata": "agentguard.schemata.serialization",
    "select_schemata": "agentguard.schemata.selection",
    "vectorisers": "agentguard.schemata.vectors.base",
    "write_schemata": "agentguard.schemata.serialization",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
