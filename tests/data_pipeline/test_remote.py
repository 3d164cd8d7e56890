"""Inputs behind URLs: read like files on a disk, and no credential of theirs is ever told."""

import base64
import gzip
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from data_pipeline.reading.documents import ReadSettings, Tally, read_source
from data_pipeline.reading.file_kinds import scrubbed, without_credentials
from data_pipeline.reading.sources import find_sources

PASSWORD, TOKEN = "pass-word-71", "tok-4711-abcdef"
ROWS = b'{"text": "a"}\n{"text": "b"}\n'


def read(url: str, skipped: Counter | None = None) -> list[tuple[str, str]]:
    tally = Tally(skipped=skipped if skipped is not None else Counter())
    sources = find_sources([url], tally.skipped)
    return [
        (d.id, d.text)
        for s in sources
        for d in read_source(s, ReadSettings(), tally, lambda n: None)
    ]


@pytest.fixture
def memory():
    fsspec = pytest.importorskip("fsspec")
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    if filesystem.exists("/awkward"):
        filesystem.rm("/awkward", recursive=True)


def test_every_kind_of_file_is_read_from_a_file_system_in_memory(memory, tmp_path):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"]}), tmp_path / "x.parquet")
    files = {
        "a.TXT": b"a\r\nb",
        "b.jsonl.gz": gzip.compress(ROWS[:14]) + gzip.compress(ROWS[14:]),
        "c.csv": b"\xef\xbb\xbftext\na\nb\n",
        "d/e.json.ZST": pyarrow.compress(b'[{"text": "a"}, {"text": "b"}]', "zstd", asbytes=True),
        "f.parquet": (tmp_path / "x.parquet").read_bytes(),
    }
    for name, content in files.items():
        memory.pipe(f"/awkward/{name}", content)
    for name in (".hidden.txt", ".git/a.txt", "d/.x/b.txt", "notes.md", "z.zip"):
        memory.pipe(f"/awkward/{name}", b"x")
    skipped: Counter = Counter()
    found = read("memory://awkward", skipped)
    assert [text for _, text in found] == ["a", "b"] * 5
    assert found[0][0] == "memory://awkward/a.TXT:1"
    assert skipped == {"hidden_file": 3, "unknown_file": 2}
    assert [t for _, t in read("memory://awkward/**/*.ZST")] == ["a", "b"]
    assert [t for _, t in read("simplecache::memory://awkward/c.csv")] == ["a", "b"]
    with pytest.raises(ValueError, match=r"--input memory://awkward/notes\.md: endings"):
        read("memory://awkward/notes.md")


@pytest.fixture
def vault():
    """A file system that wants user, password and token, and quotes them in its errors."""
    fsspec = pytest.importorskip("fsspec")
    from fsspec.implementations.memory import MemoryFileSystem

    class Vault(MemoryFileSystem):
        protocol = "vault"
        store: ClassVar = {}
        pseudo_dirs: ClassVar = [""]
        cachable = False

        def __init__(self, **storage_options: str) -> None:
            super().__init__(**storage_options)
            if storage_options.get("secret") != f"user:{PASSWORD} {TOKEN}":
                raise PermissionError(f"not {storage_options}")

        @staticmethod
        def _get_kwargs_from_urls(url: str) -> dict:
            user, _, rest = url.removeprefix("vault://").rpartition("@")
            return {"secret": f"{user} {rest.partition('token=')[2]}"}

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return "/" + path.removeprefix("vault://").rpartition("@")[2].split("?")[0].strip("/")

        def _open(self, path, mode="rb", **kwargs):
            if "broken" in path and mode == "rb":
                raise OSError(f"cannot reach vault://user:{PASSWORD}@{path}?token={TOKEN}")
            return super()._open(path, mode, **kwargs)

    fsspec.register_implementation("vault", Vault, clobber=True)
    Vault.store.clear()
    seed = Vault(secret=f"user:{PASSWORD} {TOKEN}")
    seed.pipe({"/box/x.jsonl": ROWS, "/box/broken.jsonl": ROWS})
    return f"vault://user:{PASSWORD}@box/NAME?token={TOKEN}"


def test_shards_of_a_secret_place_hold_no_secret(vault, model_file, tmp_path, capfd, caplog):
    from data_pipeline.__main__ import main

    caplog.set_level("DEBUG")
    prepare = ["prepare", "--tokenizer", str(model_file), "--output", str(tmp_path / "shards")]
    request = [*prepare, "--input", vault.replace("NAME", "x.jsonl"), "--source", f"of {vault}"]
    assert main(request) == 0
    assert main(request) == 0  # nothing to do
    wrong = [vault.replace("NAME", n) for n in ("no.jsonl", "broken.jsonl", "x.bin", "*.csv")]
    for url in [*wrong, vault.replace(TOKEN, TOKEN + "x"), vault.replace("NAME", "x.jsonl") + "x"]:
        assert main([*prepare[:-1], str(tmp_path / "no"), "--input", url]) == 2
    told = "".join(capfd.readouterr()) + caplog.text
    written = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()).decode("latin-1")
    assert "vault://box/x.jsonl" in written and "vault://box/broken.jsonl" in told
    for secret in (PASSWORD, TOKEN):
        assert secret not in told and secret not in written


@pytest.fixture
def server():
    """Gives x.jsonl to who names user, password and token, and else answers with an error."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            authorization = base64.b64encode(f"user:{PASSWORD}".encode()).decode()
            is_known = authorization in self.headers.get("Authorization", "")
            if not is_known or f"token={TOKEN}" not in self.path:
                self.send_error(403)
                return
            if "/x.jsonl" not in self.path:
                self.send_error(500, f"broken at {self.path}")
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(ROWS)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(ROWS)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, args=[0.02])
    thread.start()
    yield f"127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def test_a_link_with_user_password_and_token_is_read_and_they_are_not_told(server, capfd, caplog):
    pytest.importorskip("aiohttp")
    url = f"http://user:{PASSWORD}@{server}/x.jsonl?token={TOKEN}"
    found = read(url)
    assert found == [(f"http://{server}/x.jsonl:1", "a"), (f"http://{server}/x.jsonl:2", "b")]
    out = "".join(capfd.readouterr()) + caplog.text
    assert PASSWORD not in out and TOKEN not in out


@pytest.mark.parametrize(
    "url",
    [
        "http://user:{password}@{server}/y.jsonl?token={token}",
        "http://user:{password}@{server}/x.jsonl?token=wrong-{token}",
        "http://user:wrong-{password}@{server}/x.jsonl?token={token}",
        "http://user:{password}@{server}/x.bin?token={token}",
        "http://user:{password}@127.0.0.1:9/x.jsonl?token={token}",
        "simplecache::http://user:{password}@{server}/y.jsonl?token={token}",
        "nosuch://user:{password}@host/x.jsonl?token={token}",
        "s3://AKIA7777:{password}/x+y@bucket/y.jsonl?token={token}",
        "memory://user:{password}@nowhere/*.txt",
        "memory://user:{password}@nowhere/y.txt",
        "https://user:{password}@no.such.host.invalid/*.txt?token={token}",
        "hf://datasets/owner/name/x.jsonl?token={token}",
    ],
)
def test_errors_hold_no_credential(url, server, monkeypatch, capfd, caplog):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ValueError, match=r"--input|cannot") as raised:
        read(url.format(password=PASSWORD, token=TOKEN, server=server))
    chain = [raised.value]
    while following := chain[-1].__cause__:
        chain.append(following)
    told = " ".join(map(str, chain)) + "".join(capfd.readouterr()) + caplog.text
    assert PASSWORD not in told and TOKEN not in told, told
    assert len(str(raised.value)) < 600 and "\n" not in str(raised.value)


def test_a_dataset_that_names_a_token_is_not_quoted(monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_TOKEN", "hf_secret_0123456789")

    def load_dataset(*_args, **_options):
        raise RuntimeError("401 for https://x.org/?a=b with Bearer hf_secret_0123456789")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(
        ValueError, match=r"cannot open hf://owner/corpus: 401 for https://x\.org/ "
    ):
        read("hf://owner/corpus")
    with pytest.raises(ValueError) as raised:
        read("hf://owner/corpus")
    assert "hf_secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@host.org:80/a/b.txt?token=secret#x", "https://host.org:80/a/b.txt"),
        ("s3://bucket/a.txt", "s3://bucket/a.txt"),
        ("s3://KEY:se/cr+et@bucket/a.txt", "s3://bucket/a.txt"),
        ("simplecache::s3://KEY:secret@b/a.txt", "simplecache::s3://b/a.txt"),
        ("zip://*.txt::https://u:p@h/x.zip?sig=1", "zip://*.txt::https://h/x.zip"),
        ("hf://datasets/owner/name@main/a.txt", "hf://datasets/owner/name@main/a.txt"),
        ("https://host:8080/a@b.txt", "https://host:8080/a@b.txt"),
        ("ftp://user:p@ss@host/a.txt", "ftp://host/a.txt"),
        ("ftp://user:p?a#ss@host/a.txt", "ftp://host/a.txt"),
        ("https://host:80?mail=a@b", "https://host:80"),
        ("https://host/a?at=12:30@home", "https://host/a"),
        ("s3://KEY:12/ab@bucket/a.txt", "s3://bucket/a.txt"),
        ("memory://a[1]/*.txt", "memory://a[1]/*.txt"),
        ("plain/a@b.txt", "plain/a@b.txt"),
    ],
)
def test_a_url_is_shown_without_user_password_and_query(url, shown):
    assert without_credentials(url) == shown


def test_what_a_library_says_is_scrubbed(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "abc/def+123456")
    url = "https://user:p%40ss-word@host/x?v=1&sig=a%2Fbc+def%3D"
    typed = ("sig a%2Fbc+def%3D", "sig a%2fbc+def%3d", "sig a/bc+def=", "sig a%2Fbc%2Bdef%3D")
    for told in ("auth p@ss-word", "auth p%40ss-word", "key abc/def+123456", *typed):
        message = scrubbed(f"{told} failed at https://q:r@h/z?k=v", url)
        assert message.endswith(" *** failed at https://h/z")


@pytest.mark.parametrize("option", ["--output", "--tokenizer"])
def test_what_must_be_local_is_no_url_and_tells_no_credential(option, tmp_path, capsys):
    from data_pipeline.__main__ import main

    given = {"--input": "x.txt", "--tokenizer": "x.model", "--output": str(tmp_path / "o")}
    given[option] = f"s3://KEY:{PASSWORD}@bucket/shards?token={TOKEN}"
    assert main(["prepare", *(word for pair in given.items() for word in pair)]) == 2
    told = capsys.readouterr().err
    assert f"{option} must be a file or folder of this machine, got s3://bucket/shards." in told
    assert PASSWORD not in told and TOKEN not in told
