"""Vocabularies as published ones are: shared ids are declared, mistakes refused, time linear."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from data_pipeline.rows import Pieces
from data_pipeline.tokenizing.special import SPECIALS, SpecialIds
from data_pipeline.tokenizing.tokenizer import Tokenizer, open_tokenizer
from data_pipeline.transforms.blank import BlankConfig, BlankTransform

KINDS = ["model_file", "byte_bpe_folder", "wordpiece_folder"]


def save_folder(folder: Path, base: Path, specials: list[str], **declared: str) -> Path:
    """A transformers folder: the byte BPE of `base` with added specials and settings."""
    folder.mkdir()
    library = Library(models.BPE.from_file(str(base / "vocab.json"), str(base / "merges.txt")))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.add_special_tokens([AddedToken(s, special=True) for s in specials])
    library.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **declared}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def roberta(byte_bpe_folder, tmp_path) -> Path:
    """Specials as RoBERTa declares them: one piece is eos and sep, another bos and cls."""
    return save_folder(
        tmp_path / "roberta",
        byte_bpe_folder,
        ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        bos_token="<s>", cls_token="<s>", pad_token="<pad>", eos_token="</s>",
        sep_token="</s>", unk_token="<unk>", mask_token="<mask>",
    )  # fmt: skip


def unshared(tokenizer: Tokenizer) -> None:
    """No two specials share an id but for the aliases."""
    ids = tokenizer.special.by_name()
    kept = [ids[n] for n in SPECIALS if n not in tokenizer.aliases]
    assert len(set(kept)) == len(kept) and max(ids.values()) < tokenizer.vocab_size


def test_the_separator_of_roberta_is_its_end_only_where_declared(roberta, tmp_path):
    apart = open_tokenizer(roberta)
    unshared(apart)
    assert apart.special.eos == 302 and apart.special.sep >= apart.num_pieces == 305
    shared = open_tokenizer(roberta, {"sep": "eos"})
    unshared(shared)
    assert shared.special.sep == shared.special.eos == 302 and shared.vocab_size == 305 + 5
    assert (shared.special.cls, shared.special.pad, shared.special.mask) == (300, 301, 304)
    assert shared.fingerprint != apart.fingerprint
    shared.save(tmp_path / "saved")
    assert open_tokenizer(tmp_path / "saved").special == shared.special


def test_gpt2_with_one_piece_for_all_shares_it_only_where_declared(byte_bpe_folder, tmp_path):
    name = "<|endoftext|>"
    folder = save_folder(
        tmp_path / "gpt2", byte_bpe_folder, [name], bos_token=name, eos_token=name, pad_token=name
    )
    apart = open_tokenizer(folder)
    unshared(apart)
    assert apart.special.eos == 0 and apart.special.pad == 300
    shared = open_tokenizer(folder, {"pad": "eos"})
    unshared(shared)
    assert shared.special.pad == shared.special.eos == 0


def test_rows_do_not_depend_on_the_id_of_padding(byte_bpe_folder):
    """Where pad is eos, what is padding is known by lengths: the rows are the same ones."""
    tokenizer = open_tokenizer(byte_bpe_folder, {"pad": "eos"})
    text = tokenizer.encode(["the river rose in the night and carried the bridge away."])[0]
    pieces = Pieces(
        document_N=np.array([0]),
        start_N=np.array([0]),
        stop_N=np.array([len(text)]),
        prompt_N=np.array([0]),
        ends_document_N=np.array([True]),
        sentence_ends=np.array([len(text)]),
        sentence_offsets_N1=np.array([0, 1]),
    )
    rows = []
    for pad in (tokenizer.special.eos, tokenizer.special.smask, 299):
        special = SpecialIds(**tokenizer.special.by_name() | {"pad": pad})
        transform = BlankTransform(
            BlankConfig(), special, source_tokens=64, vocab_size=tokenizer.vocab_size
        )
        plan = transform.draw(pieces, np.array([7], np.uint64), np.array([200]))
        rows.append(transform.build(text, plan))
    assert tokenizer.special.eos in rows[0].ids  # as the end of the document, not as padding
    for other in rows[1:]:
        for name, array in vars(rows[0]).items():
            assert np.array_equal(array, getattr(other, name)), name


@pytest.mark.parametrize("file", ["tokenizer.json", "added_tokens.json"])
def test_two_specials_of_one_id_are_refused_with_what_to_do(byte_bpe_folder, tmp_path, file):
    """As GLM-10B-Chinese, whose gmask and eop are one: the library would move it, in silence."""
    name = "<|endoftext|>"
    folder = save_folder(tmp_path / "x", byte_bpe_folder, [name], eos_token=name)
    if file == "added_tokens.json":
        (folder / file).write_text(json.dumps({"<eop>": 300, "[gMASK]": 300}))
    else:
        content = json.loads((folder / file).read_text())
        entry = next(t for t in content["added_tokens"] if t["content"] == name)
        added = [{**entry, "id": 300, "content": piece} for piece in ("<eop>", "[gMASK]")]
        content["added_tokens"] += added
        (folder / file).write_text(json.dumps(content))
    says = r"gives '<eop>' and '\[gMASK\]' the same id 300.*GLM-10B-Chinese.*give the second an id"
    with pytest.raises(ValueError, match=says):
        open_tokenizer(folder)


@pytest.mark.parametrize("aliases", [{"gmask": "eop"}, {"eop": "gmask"}, {"mask": "sop"}])
def test_span_marks_share_no_id_even_where_asked(model_file, aliases):
    with pytest.raises(ValueError, match="must have ids of their own"):
        open_tokenizer(model_file, aliases)


def test_a_vocabulary_with_holes_gets_its_specials_behind_the_last_id(tmp_path):
    words = {"[UNK]": 0, "a": 5, "b": 90}
    library = Library(models.WordLevel(words, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.save(str(tmp_path / "x.json"))
    tokenizer = open_tokenizer(tmp_path / "x.json")
    assert tokenizer.num_pieces == 91 and tokenizer.vocab_size == 91 + 10
    assert tokenizer.encode(["a b"])[0].tolist() == [5, 90]


@pytest.mark.parametrize("wrong", ["vocab_file", "names", "empty"])
def test_a_folder_of_which_transformers_makes_one_word_is_refused(byte_bpe_folder, tmp_path, wrong):
    """transformers 5 builds a vocabulary of 1 to 5 pieces, in silence, where it finds no files."""
    folder = tmp_path / "x"
    folder.mkdir()
    settings = {"tokenizer_class": "GPT2Tokenizer"}
    names = {"vocab_file": ("vocab.txt", "merges.txt"), "names": ("encoder.json", "vocab.bpe")}
    if wrong != "empty":
        for name, source in zip(names[wrong], ("vocab.json", "merges.txt")):
            (folder / name).write_bytes((byte_bpe_folder / source).read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"special pieces and no word|vocabulary file|cannot open"):
        open_tokenizer(folder)


def test_a_model_with_damaged_bytes_opens_or_is_refused(model_file, tmp_path):
    """Whatever bytes change, there is a tokenizer or a ValueError with the file's name."""
    rng = np.random.default_rng(4)
    whole, path = model_file.read_bytes(), tmp_path / "x.model"
    num_opened = 0
    for _ in range(150):
        raw = bytearray(whole)
        for at in rng.integers(len(raw), size=int(rng.integers(1, 4))).tolist():
            raw[at] = int(rng.integers(256))
        path.write_bytes(raw)
        try:
            tokenizer = open_tokenizer(path)
            tokenizer.decode(tokenizer.encode_with_offsets(["the river \u00e9"]).ids)
            num_opened += 1
        except ValueError as error:
            assert str(path) in str(error) or "control id" in str(error)
    assert num_opened < 150


def _cpu_s(call) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["x", ".", "\u00e9", "\u0301", "ab", " "])
def test_a_word_of_200_000_letters_takes_linear_time(kind, request, text):
    """Four times the letters take at most nine times as long; quadratic would be sixteen."""
    from data_pipeline.tokenizing.sentences import ends_in_tokens

    tokenizer = open_tokenizer(request.getfixturevalue(kind))

    def run(size: int) -> None:
        texts = [text * (size // len(text)) + "a"]
        ends_in_tokens(texts, tokenizer.encode_with_offsets(texts))

    run(1000)
    short = min(_cpu_s(lambda: run(50_000)) for _ in range(2))
    assert _cpu_s(lambda: run(200_000)) < 9 * short + 0.2


@pytest.mark.parametrize("kind", KINDS[:2])
def test_texts_of_all_directions_are_read_back(kind, request):
    tokenizer = open_tokenizer(request.getfixturevalue(kind))
    texts = [
        "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643.",
        "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd \u200f(abc)\u200e",
        "e\u0301 \u00e9 a\u0323\u0307 \u0e01\u0e33",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2028 \u0085 \u200b\ufeff \x7f\x1b",
    ]
    assert [tokenizer.decode(ids) for ids in tokenizer.encode(texts)] == texts
