"""Where the data that ships with agentguard lies: packaged first, the repository's folder else."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_PACKAGED = _PACKAGE / "_data"
_REPOSITORY = _PACKAGE.parent


def taxonomies() -> Path:
    """Folder of the taxonomies that ship with agentguard."""
    packaged = _PACKAGED / "taxonomies"
    return packaged if packaged.is_dir() else _REPOSITORY / "taxonomies"


def datasets() -> Path:
    """Folder of the cards and manifests of data sets, one folder each."""
    packaged = _PACKAGED / "datasets"
    return packaged if packaged.is_dir() else _REPOSITORY / "datasets"


def models() -> Path:
    """Folder of the embedded judge's model files; it may not exist before the first training."""
    return _PACKAGE / "judge" / "models"
