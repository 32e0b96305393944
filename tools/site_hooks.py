"""Additions of the site to the pages in docs/, so that the same text serves GitHub and the site.

The README is the first page. Repository files linked from a page become pages, and so does a notebook. llms.txt lists
the pages for programs.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# [text](path#anchor) and ![text](path), without links to other sites; not in code.
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
PICTURES = (".png", ".svg")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".service": "ini", ".timer": "ini", "Makefile": "make"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(notebook)
        page, images = notebook_page(json.loads(notebook.content_string), Path(notebook.src_uri).stem)
        files.append(File.generated(config, notebook.src_uri.replace(".ipynb", ".md"), content=page))
        for name, image in images.items():
            files.append(File.generated(config, name, content=image))
    seen: set[str] = set()
    new = {"README.md", *(f"docs/{file.src_uri}" for file in files if file.src_uri.endswith(".md"))}
    while new:
        source = new.pop()
        seen.add(source)
        if source == "README.md" or not source.startswith("docs/"):
            content = repository_page(source)
            level = InclusionLevel.INCLUDED if source == "README.md" else InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, site_path(source), content=content, inclusion=level))
        else:
            content = files.get_file_from_path(source.removeprefix("docs/")).content_string
        new |= {path for path in linked(content, source) if (ROOT / path).exists()} - seen
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Converts links from repository paths to site paths."""
    source = repository_path(page.file.src_uri)

    def on_site(match: re.Match[str]) -> str:
        path = resolve(match[0], source)
        if not (ROOT / path).exists():
            return match[0]  # mkdocs reports it
        return os.path.relpath(site_path(path), os.path.dirname(page.file.src_uri) or ".")

    return outside_code(markdown, on_site)


def on_post_build(config: MkDocsConfig) -> None:
    """llms.txt, with the addresses of the site's pages."""
    text = (ROOT / "llms.txt").read_text()
    (Path(config.site_dir) / "llms.txt").write_text(LINK.sub(lambda match: page_address(match[0]), text))


def page_address(source: str) -> str:
    """The address of a page on the site.

    >>> page_address("README.md"), page_address("docs/word_senses.ipynb")
    ('./', 'word_senses/')
    """
    name = site_path(source).removesuffix(".md")
    return "./" if name == "index" else f"{name}/"


def outside_code(markdown: str, replace: Any) -> str:
    parts = CODE.split(markdown)
    return "".join(part if number % 2 else LINK.sub(replace, part) for number, part in enumerate(parts))


def linked(markdown: str, source: str) -> set[str]:
    """Files and folders of the repository that a page links to, as paths relative to its root."""
    text = "".join(CODE.split(markdown)[::2])
    paths = {resolve(match[0], source) for match in LINK.finditer(text)}
    return {path for path in paths if not path.endswith((".ipynb", *PICTURES))}  # mkdocs includes those itself


def resolve(link: str, source: str) -> str:
    """The repository path of a link on the page `source`.

    >>> resolve("../configs/schedule/", "docs/scheduled_runs.md"), resolve("output.md", "docs/faq.md")
    ('configs/schedule', 'docs/output.md')
    """
    return os.path.normpath(os.path.join(source if (ROOT / source).is_dir() else os.path.dirname(source), link))


def site_path(source: str) -> str:
    """The site path of a repository file.

    >>> [site_path(path) for path in ("README.md", "docs/faq.md", "docs/word_senses.ipynb", "configs/demo.yaml")]
    ['index.md', 'faq.md', 'word_senses.md', 'repository/configs/demo.yaml.md']
    >>> site_path("docs/images/report-well.png")
    'images/report-well.png'
    """
    if source == "README.md":
        return "index.md"
    if source.startswith("docs/") and source.endswith((".md", ".ipynb", *PICTURES)):
        return source.removeprefix("docs/").replace(".ipynb", ".md")
    return f"repository/{source}" if source.endswith(".md") else f"repository/{source}.md"


def repository_path(site: str) -> str:
    """The inverse of `site_path`.

    >>> [repository_path(path) for path in ("index.md", "faq.md", "repository/configs/demo.yaml.md")]
    ['README.md', 'docs/faq.md', 'configs/demo.yaml']
    """
    if site == "index.md":
        return "README.md"
    if not site.startswith("repository/"):
        return f"docs/{site}"
    source = site.removeprefix("repository/")
    return source if (ROOT / source).exists() else source.removesuffix(".md")


def repository_page(source: str) -> str:
    """A folder as a list of its files; Markdown unchanged; other text as code."""
    path = ROOT / source
    if path.is_dir():
        command = ["git", "ls-files", "--", source]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()  # noqa: S603
        names = sorted({os.path.relpath(name, source).split("/")[0] for name in found})
        return "\n".join([f"# {source}", "", *(f"* [{name}]({name})" for name in names)])
    text = path.read_text()
    if path.suffix == ".md":
        return text
    return f"# {path.name}\n\n`{source}`\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n````\n"


def notebook_page(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by path."""
    lines, images = [], {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        lines += [source, ""] if cell["cell_type"] == "markdown" else ["```python", source, "```", ""]
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{name}_{len(images) + 1}.png"
                images[picture] = base64.b64decode(data["image/png"])
                lines += [f"![{''.join(data['text/plain'])}]({picture})", ""]
            else:
                lines += ["```text", "".join(output.get("text", data.get("text/plain", ""))).rstrip(), "```", ""]
    return "\n".join(lines), images
