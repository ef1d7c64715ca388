"""A hook of mkdocs: each page as Markdown beside its HTML, and `llms.txt`, which lists them for agents."""

import re
import shutil
from pathlib import Path
from typing import Any


def on_post_build(config: Any) -> None:
    """Write them into the site."""
    docs, site = Path(config["docs_dir"]), Path(config["site_dir"])
    for page in docs.rglob("*.md"):
        target = site / page.relative_to(docs)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, target)
    parts = [f"# {config['site_name']}\n", f"> {config['site_description']}.\n"]
    for entry in config["nav"]:
        [(title, pages)] = entry.items() if isinstance(entry, dict) else [("Start", entry)]
        listed = pages if isinstance(pages, list) else [pages]
        parts.append(f"## {title}\n\n" + "".join(_line(docs, each) for each in listed))
    (site / "llms.txt").write_text("\n".join(parts), encoding="utf-8")


def _line(docs: Path, entry: Any) -> str:
    """`- [Title](page.md): its first sentence`."""
    if isinstance(entry, dict):
        return "".join(
            _line(docs, page) for pages in entry.values() for page in (pages if isinstance(pages, list) else [pages])
        )
    text = (docs / entry).read_text(encoding="utf-8")
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    prose = [block for block in text.split("\n\n") if block and block[0].isalpha()]
    first = re.split(r"(?<=[.?!:])\s", " ".join(prose[0].split()))[0] if prose else ""
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", first).rstrip(".:")
    return f"- [{title[1] if title else entry}]({entry}){f': {plain}' if plain else ''}\n"
