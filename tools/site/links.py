"""A hook of mkdocs: links from a page to files outside of docs/ lead to the repository.

A link to a file that does not exist stays as it is, and mkdocs reports it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Rewrites the links of one page."""
    folder = Path(page.file.abs_src_path).parent
    docs = Path(config["docs_dir"])

    def link(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / match[2]))
        inside = target.is_relative_to(docs) and (target.suffix == ".md" or target.is_file())
        if inside or not target.exists() or not target.is_relative_to(_ROOT):
            return match[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"{match[1]}{config['repo_url']}/{kind}/main/{target.relative_to(_ROOT)}{match[3]}"

    return _LINK.sub(link, markdown)
