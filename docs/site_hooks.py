"""What the site needs beyond mkdocs: anchors as GitHub makes them, links beyond `docs/`.

Pages are also read in the repository, so their links lead to files beside `docs/`. The site takes
these files along, below `repository/`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)")
_BESIDE = "repository"


def slug(heading: str, separator: str) -> str:
    """The anchor of a heading on GitHub."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", separator)


def on_config(config: Any) -> Any:
    config.mdx_configs["toc"]["slugify"] = slug
    return config


def on_files(files: Files, config: Any) -> Files:
    """Take along what pages link to outside of `docs/`, and what these link to."""
    waiting = [DOCS / file.src_uri for file in files.documentation_pages()]
    while waiting:
        page = waiting.pop()
        for target in _LINK.findall(page.read_text("utf-8")):
            path = _leads_to(page, target)
            if not path.is_file() or path.is_relative_to(DOCS):
                continue
            uri = f"{_BESIDE}/{path.relative_to(ROOT).as_posix()}"
            if files.get_file_from_path(uri) is None:
                known = {"abs_src_path": str(path), "inclusion": InclusionLevel.NOT_IN_NAV}
                files.append(File.generated(config, uri, **known))
                waiting += [path] if path.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links lead to where files are on the site."""
    here = _home(page.file.src_uri)

    def moved(found: re.Match[str]) -> str:
        path = _leads_to(here, found.group())
        inside = path.is_relative_to(DOCS)
        if not path.is_file() or (inside and here.is_relative_to(DOCS)):
            return found.group()
        base = path.relative_to(DOCS) if inside else _BESIDE / path.relative_to(ROOT)
        return os.path.relpath(base, Path(page.file.src_uri).parent).replace(os.sep, "/")

    return _LINK.sub(moved, markdown)


def _home(uri: str) -> Path:
    """The file that a page was made of."""
    outside = uri.removeprefix(f"{_BESIDE}/")
    return (ROOT if outside != uri else DOCS) / outside


def _leads_to(page: Path, target: str) -> Path:
    return (page.parent / target).resolve()
