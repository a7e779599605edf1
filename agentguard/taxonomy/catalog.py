"""Catalog of taxonomies: the bundled ones and those in the user's folders.

Each taxonomy is a YAML file of that name; ``crosswalk.yaml`` contains links between codes. Pass the user's
folders to `TaxonomyCatalog.load`, or list them in the environment variable ``AGENTGUARD_TAXONOMIES``
(separated as in ``PATH``). A file is read at the first use of its taxonomy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cached_property, lru_cache
from pathlib import Path

from agentguard import package_data
from agentguard.errors import TaxonomyError
from agentguard.taxonomy.model import Crosswalk, CrosswalkLink, Taxonomy, TaxonomyCode
from agentguard.taxonomy.parser import CROSSWALK_FILE, read_crosswalk_links, read_taxonomy

FOLDERS_VARIABLE = "AGENTGUARD_TAXONOMIES"


class TaxonomyCatalog:
    """Taxonomies by name, and the crosswalk between them."""

    def __init__(self, files: dict[str, Path], crosswalks: tuple[Path, ...]) -> None:
        self._files = files
        self._crosswalks = crosswalks
        self._cache: dict[str, Taxonomy] = {}

    @classmethod
    def load(cls, *folders: str | Path) -> TaxonomyCatalog:
        """Return the bundled taxonomies and those of ``folders`` and of ``AGENTGUARD_TAXONOMIES``.

        The result is cached by folders; a process does not read a changed file again. Raises TaxonomyError if
        a folder is missing or two files have the same name.
        """
        default_folders = [part for part in os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep) if part]
        return _load_folders(tuple(str(Path(folder).resolve()) for folder in (*default_folders, *folders)))

    def names(self) -> tuple[str, ...]:
        """Return the names of all taxonomies, sorted."""
        return tuple(sorted(self._files))

    def files(self) -> tuple[Path, ...]:
        """Return all files, taxonomies before crosswalks."""
        return (*(self._files[name] for name in self.names()), *self._crosswalks)

    def get_taxonomy(self, name: str) -> Taxonomy:
        """Return a taxonomy. Raises TaxonomyError if it does not exist or its file is not valid."""
        if name not in self._cache:
            if name not in self._files:
                raise TaxonomyError(
                    f"no taxonomy named {name!r}", hint=f"there are: {', '.join(self.names())}"
                )
            self._cache[name] = read_taxonomy(self._files[name])
        return self._cache[name]

    def get_code(self, qualified: str) -> TaxonomyCode:
        """Return a code by its qualified name, such as ``"mast:step_repetition"``.

        Raises TaxonomyError, with the most similar names, if the code does not exist.
        """
        name, colon, id = qualified.partition(":")
        if not colon:
            raise TaxonomyError(f"{qualified!r} is not a qualified code", hint="write <taxonomy>:<code>")
        taxonomy = self.get_taxonomy(name)
        code = taxonomy.get_code(id)
        if code is None:
            similar_ids = get_close_matches(id, [known_code.id for known_code in taxonomy.codes], n=3)
            suggestion = (
                f"did you mean {' or '.join(f'{name}:{similar_id}' for similar_id in similar_ids)}?"
                if similar_ids
                else ""
            )
            hint = suggestion or f"`agentguard taxonomy show {name}` lists its codes"
            raise TaxonomyError(f"no code {qualified!r}", hint=hint)
        return code

    def find_codes(self, text: str) -> tuple[TaxonomyCode, ...]:
        """Return the codes with this qualified name, id or title, in any case; empty if no code has it."""
        wanted = text.casefold().strip()
        return tuple(
            code
            for taxonomy in self
            for code in taxonomy.codes
            if wanted in (code.qualified_id.casefold(), code.id.casefold(), code.title.casefold())
        )

    def get_title(self, qualified: str) -> str:
        """Return the title of a code, or ``qualified`` if no taxonomy has that code.

        A plug-in detector may have unlisted codes. Raises TaxonomyError if the file is not valid.
        """
        name, _, id = qualified.partition(":")
        code = self.get_taxonomy(name).get_code(id) if name in self._files else None
        return qualified if code is None else code.title

    def map_code(self, qualified: str, *, to: str | None = None) -> tuple[CrosswalkLink, ...]:
        """Return the links from a code, the closest first; ``to`` selects one target taxonomy.

        Raises TaxonomyError if the code or the taxonomy does not exist.
        """
        self.get_code(qualified)
        if to is not None:
            self.get_taxonomy(to)
        return self.crosswalk.list_links(qualified, to=to)

    @cached_property
    def crosswalk(self) -> Crosswalk:
        """All links of all folders. Raises TaxonomyError if a link names a code that does not exist."""
        return Crosswalk(link for path in self._crosswalks for link in self.read_checked_links(path))

    def read_checked_links(self, path: Path) -> tuple[CrosswalkLink, ...]:
        """Return the links of one crosswalk file. Raises TaxonomyError if the file or a code is not valid."""
        links = read_crosswalk_links(path)
        for i, link in enumerate(links):
            for field, code in (("from", link.source), ("to", link.target)):
                try:
                    self.get_code(code)
                except TaxonomyError as error:
                    field_path = f"links[{i}].{field}"
                    raise TaxonomyError(
                        error.reason, file=str(path), field=field_path, hint=error.hint
                    ) from None
        return links

    def __iter__(self) -> Iterator[Taxonomy]:
        return (self.get_taxonomy(name) for name in self.names())


@lru_cache(maxsize=16)
def _load_folders(folders: tuple[str, ...]) -> TaxonomyCatalog:
    files: dict[str, Path] = {}
    crosswalks: list[Path] = []
    for folder in dict.fromkeys((str(package_data.get_taxonomies_dir()), *folders)):
        if not Path(folder).is_dir():
            hint = f"create it, or correct --taxonomies or {FOLDERS_VARIABLE}"
            raise TaxonomyError("no such folder of taxonomies", file=folder, hint=hint)
        for path in sorted(Path(folder).glob("*.yaml")):
            if path.name == CROSSWALK_FILE:
                crosswalks.append(path)
            elif path.stem in files:
                hint = f"{files[path.stem]} has it; choose another"
                raise TaxonomyError(f"the name {path.stem!r} is taken", file=str(path), hint=hint)
            else:
                files[path.stem] = path
    return TaxonomyCatalog(files, tuple(crosswalks))
