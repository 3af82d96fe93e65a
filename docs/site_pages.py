"""The site's hooks: pages from the repository's root, and links that mean the same in both places.

The README is the first page.

A page links to what lies beside it in the repository.  Of what is not on the site (code, the README
of the bench) the name is left, as code.  ``make docs`` fails on a link that leads nowhere, and on a
page that would load anything from another host.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parents[1]
AT_THE_ROOT = {
    "index.md": "README.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
}

_LINK = re.compile(r"(?<!!)\[(?P<label>[^\]]+)\]\((?P<target>[^)\s]+)\)")
_LOADED = re.compile(
    r"<(?:script|img|iframe|link(?![^>]*rel=\"(?:canonical|prev|next)\"))[^>]*"
    r"(?:src|href)=\"?(?:https?:)?//[^\">]*"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's root."""
    for uri, name in AT_THE_ROOT.items():
        content = (REPOSITORY / name).read_text().replace("](docs/images/", "](images/")
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(
    markdown: str,
    page: Page,
    config: MkDocsConfig,  # noqa: ARG001 - mkdocs passes it by name
    files: Files,
) -> str:
    """Turn each link between files of the repository into one between pages of the site."""
    here = page.file.src_uri
    folder = posixpath.dirname(here if here in AT_THE_ROOT else f"docs/{here}")

    def on_the_site(link: re.Match[str]) -> str:
        target = link["target"]
        if re.match(r"[a-z]+:|#", target):
            return link[0]
        path, _, anchor = target.partition("#")
        in_the_repository = posixpath.normpath(posixpath.join(folder, path))
        if not (REPOSITORY / in_the_repository).exists():
            raise PluginError(f"{here} links to {target}, and there is no {in_the_repository}")
        uri = in_the_repository.removeprefix("docs/")
        if (REPOSITORY / in_the_repository).is_dir():
            uri += "/README.md"
        if files.get_file_from_path(uri) is None:
            label, code = link["label"].strip("`"), f"`{in_the_repository}`"
            return code if label == in_the_repository else f"{label} ({code})"
        moved = posixpath.relpath(uri, posixpath.dirname(here) or ".")
        return f"[{link['label']}]({moved}{'#' + anchor if anchor else ''})"

    return _LINK.sub(on_the_site, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001
    """Refuse a page that needs a network to be read."""
    found = _LOADED.search(output)
    if found is not None:
        raise PluginError(f"{page.file.src_uri} would load {found[0]!r} from another host")
    return output
