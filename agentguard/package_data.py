"""Locations of the data of agentguard: in the package if present, otherwise in the repository."""

from __future__ import annotations

from pathlib import Path

_PACKAGE_DIR = Path(__file__).resolve().parent
_PACKAGED_DATA_DIR = _PACKAGE_DIR / "_data"
_REPOSITORY_DIR = _PACKAGE_DIR.parent


def get_taxonomies_dir() -> Path:
    """Return the folder of the bundled taxonomies."""
    packaged = _PACKAGED_DATA_DIR / "taxonomies"
    return packaged if packaged.is_dir() else _REPOSITORY_DIR / "taxonomies"


def get_datasets_dir() -> Path:
    """Return the folder of the cards and manifests of data sets, one folder each."""
    packaged = _PACKAGED_DATA_DIR / "datasets"
    return packaged if packaged.is_dir() else _REPOSITORY_DIR / "datasets"


def get_models_dir() -> Path:
    """Return the folder of the embedded judge's model files; it may not exist before the first training."""
    return _PACKAGE_DIR / "judge" / "models"
