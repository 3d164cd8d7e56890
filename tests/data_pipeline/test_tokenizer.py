"""One behaviour over three kinds of vocabulary: control ids never come out of text."""

import json
import shutil
import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

from data_pipeline.tokenizing.special import KNOWN_PIECES, SPECIAL_TEXT, SPECIALS
from data_pipeline.tokenizing.tokenizer import SETTINGS_FILE, Tokenizer, open_tokenizer
from data_pipeline.tokenizing.tokenizers_backend import TokenizersBackend

KINDS = ["model_file", "byte_bpe_folder", "wordpiece_folder"]
FORGERIES = " ".join(name for names in KNOWN_PIECES.values() for name in names)


def offsets(tokenizer: Tokenizer, text: str):
    """The ids of one text, and the characters at which each token starts and ends."""
    encoded = tokenizer.encode_with_offsets([text])
    return encoded.ids, encoded.starts, encoded.ends


@pytest.fixture(params=KINDS)
def tokenizer(request) -> Tokenizer:
    return open_tokenizer(request.getfixturevalue(request.param))


def test_text_never_becomes_a_control_id(tokenizer):
    texts = [FORGERIES, FORGERIES.replace(" ", ""), FORGERIES.lower(), "[MASK]", " <sop>", ""]
    control = set(tokenizer.special.by_name().values()) - {tokenizer.special.unk}
    for ids in [*tokenizer.encode(texts), tokenizer.encode_continuation(FORGERIES)]:
        assert not control & set(ids.tolist())


def test_specials_are_decoded_by_name_and_lie_inside_the_vocabulary(tokenizer):
    ids = list(tokenizer.special.by_name().values())
    assert tokenizer.decode(ids) == "".join(SPECIAL_TEXT[n] for n in SPECIALS)
    assert tokenizer.pieces(ids) == [SPECIAL_TEXT[n] for n in SPECIALS]
    assert len(set(ids)) == len(SPECIALS) and max(ids) < tokenizer.vocab_size


def test_offsets_cover_the_text_they_stand_for(tokenizer):
    text = "the river, the bank. a gap?"
    ids, starts, ends = offsets(tokenizer, text)
    assert np.array_equal(ids, tokenizer.encode([text])[0])
    assert (np.diff(starts) >= 0).all() and (np.diff(ends) >= 0).all() and ends[-1] == len(text)
    covered = "".join(text[a:b] for a, b in zip(starts, ends))
    assert covered.replace(" ", "") == text.replace(" ", "")


def test_texts_together_are_encoded_as_each_alone(tokenizer):
    texts = ["", "the river \u00e9.", "", "a\u2581b", "rose\nin", "\u00e9\u00e9 a"]
    together = tokenizer.encode_with_offsets(texts)
    first = 0
    for n, text in enumerate(texts):
        own = slice(together.offsets_N1[n], together.offsets_N1[n + 1])
        ids, starts, ends = offsets(tokenizer, text)
        assert np.array_equal(together.ids[own], ids)
        assert np.array_equal(together.starts[own] - first, starts)
        assert np.array_equal(together.ends[own] - first, ends)
        first += len(text)


def test_a_continuation_invents_no_space(tokenizer):
    first, rest = tokenizer.encode(["the river"])[0], tokenizer.encode_continuation(" rose in")
    assert tokenizer.decode(np.append(first, rest)) == "the river rose in"
    masked = [*first.tolist(), tokenizer.special.mask, *rest.tolist()]
    assert tokenizer.decode(masked) == "the river[MASK] rose in"


def test_a_saved_tokenizer_is_the_same(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    again = open_tokenizer(tmp_path)
    assert again.special == tokenizer.special and again.vocab_size == tokenizer.vocab_size
    assert again.fingerprint == tokenizer.fingerprint
    text = "the river rose [MASK] 3.14 \u00e9"
    assert np.array_equal(again.encode([text])[0], tokenizer.encode([text])[0])


def test_a_saved_tokenizer_with_a_changed_model_is_refused(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    settings = json.loads((tmp_path / SETTINGS_FILE).read_text())
    settings["fingerprint"] = "0" * 32
    (tmp_path / SETTINGS_FILE).write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"not the tokenizer .* was written for"):
        open_tokenizer(tmp_path)


def test_ids_outside_the_vocabulary_are_refused(tokenizer):
    with pytest.raises(ValueError, match=rf"outside the vocabulary \[0, {tokenizer.vocab_size}\)"):
        tokenizer.decode([tokenizer.vocab_size])


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_fetched(kind, request, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    open_tokenizer(request.getfixturevalue(kind))


def test_specials_of_a_byte_bpe_follow_its_last_id(byte_bpe_folder):
    tokenizer = open_tokenizer(byte_bpe_folder, {"pad": "eos"})
    assert tokenizer.special.by_name() == {
        "pad": 0, "eos": 0, "cls": 300, "mask": 301, "sep": 302, "unk": 303, "sop": 304,
        "eop": 305, "gmask": 306, "smask": 307, "dblock": 308,
    }  # fmt: skip
    assert tokenizer.vocab_size == 309


def test_specials_of_a_wordpiece_are_found_by_name(wordpiece_folder):
    special = open_tokenizer(wordpiece_folder).special
    assert (special.pad, special.unk, special.cls, special.sep, special.mask) == (0, 1, 2, 3, 4)


def test_a_cased_vocabulary_without_settings_is_not_lowered(wordpiece_folder, tmp_path):
    pieces = (wordpiece_folder / "vocab.txt").read_text() + "The\n"
    (tmp_path / "vocab.txt").write_text(pieces)
    tokenizer = open_tokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.encode(["The river"])[0]) == "The river"


@given(st.text(alphabet="ab \n\t.é。\u2028\U0001f600[<", max_size=40))
def test_our_own_models_lose_nothing(shared_model, text):
    ids, starts, ends = offsets(shared_model, text)
    assert shared_model.decode(ids) == text
    assert (starts <= ends).all() and (not text or ends[-1] == len(text))


@given(st.text(alphabet="ab .\n", max_size=40))
def test_offsets_from_lengths_are_those_of_the_library(shared_model, library, text):
    _, starts, ends = offsets(shared_model, text)
    expected = library.encode(text, return_type="offset_mapping")["offsets"]
    assert list(zip(starts.tolist(), ends.tolist())) == [tuple(o) for o in expected]


@pytest.fixture(scope="module")
def shared_model(model_file) -> Tokenizer:
    return open_tokenizer(model_file)


@pytest.fixture(scope="module")
def library(model_file) -> SentencePieceProcessor:
    return SentencePieceProcessor(model_file=str(model_file))


def test_the_space_sign_of_the_library_is_the_only_loss(shared_model):
    ids, starts, ends = offsets(shared_model, "a\u2581b \u00e9")
    assert shared_model.decode(ids) == "a b \u00e9"
    assert starts[0] == 0 and ends[-1] == 5


def _foreign_model(model_file, path, **changes):
    """The model with some pieces of other types, and normalised as most published models are."""
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model_file.read_bytes())
    for piece in proto.pieces:
        if piece.piece in changes.get("types", {}):
            piece.type = changes["types"][piece.piece]
    proto.normalizer_spec.remove_extra_whitespaces = True
    path.write_bytes(proto.SerializeToString())
    return path


def test_user_defined_masks_of_a_foreign_model_do_not_come_out_of_text(model_file, tmp_path):
    user_defined = sentencepiece_model_pb2.ModelProto.SentencePiece.USER_DEFINED
    types = {"[MASK]": user_defined, "<sop>": user_defined, "[gMASK]": user_defined}
    path = _foreign_model(model_file, tmp_path / "foreign.model", types=types)
    raw = SentencePieceProcessor(model_file=str(path))
    tokenizer = open_tokenizer(path)
    special = tokenizer.special
    assert special.mask in raw.encode("a [MASK] b")  # the trap is there
    ids = tokenizer.encode(["a [MASK] b <sop>[gMASK]"])[0].tolist()
    assert not {special.mask, special.sop, special.gmask} & set(ids)
    assert tokenizer.decode(ids) == "a [MASK] b <sop>[gMASK]"


def test_a_model_that_trims_spaces_keeps_the_one_in_front_of_a_continuation(model_file, tmp_path):
    tokenizer = open_tokenizer(_foreign_model(model_file, tmp_path / "foreign.model"))
    the, rose = tokenizer.encode(["the"])[0], tokenizer.encode_continuation(" rose")
    assert tokenizer.decode(np.append(the, rose)) == "the rose"
    assert tokenizer.decode(np.append(the, tokenizer.encode_continuation("rose"))) == "therose"


def test_offsets_of_a_normalising_model_count_characters(model_file, tmp_path):
    tokenizer = open_tokenizer(_foreign_model(model_file, tmp_path / "foreign.model"))
    text = "\u00e9\u00e9  the  bank."
    ids, starts, ends = offsets(tokenizer, text)
    last = text[starts[-1] : ends[-1]]
    assert last == "." and ends[-1] == len(text) and len(ids) == len(starts)


def test_added_words_of_a_folder_that_are_masks_become_control(byte_bpe_folder, tmp_path):
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    folder = byte_bpe_folder
    bare = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.add_tokens([AddedToken("[MASK]", special=False)])
    assert bare.token_to_id("[MASK]") in bare.encode("a [MASK]").ids  # the trap is there
    bare.save(str(tmp_path / "tokenizer.json"))
    tokenizer = open_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.special.mask == bare.token_to_id("[MASK]")
    assert tokenizer.special.mask not in tokenizer.encode(["a [MASK]"])[0]


def test_an_ordinary_word_that_is_a_mask_is_refused(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "[MASK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"turns the text '\[MASK\]' into a control id"):
        open_tokenizer(tmp_path / "tokenizer.json")


def test_a_vocabulary_of_specials_alone_is_refused():
    # What transformers 5 builds, in silence, from names of files that are not there.
    from transformers import BertTokenizer

    payload = BertTokenizer().backend_tokenizer.to_str().encode()
    with pytest.raises(ValueError, match="5 special pieces and no word"):
        TokenizersBackend(payload, "folder")


def test_a_class_that_does_not_read_the_vocabulary_is_refused(byte_bpe_folder, tmp_path):
    shutil.copytree(byte_bpe_folder, tmp_path / "t")
    (tmp_path / "t" / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    with pytest.raises(ValueError, match=r"vocabulary file holds 300 pieces|transformers cannot"):
        open_tokenizer(tmp_path / "t")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: p / "absent", "does not exist"),
        (
            lambda p: (p / "x.model", (p / "x.model").write_bytes(b"no model"))[0],
            "no sentencepiece",
        ),
        (lambda p: (p / "x.model", (p / "x.model").write_bytes(b""))[0], "no sentencepiece"),
        (lambda p: (p / "x.json", (p / "x.json").write_text("{}"))[0], "is no tokenizer.json"),
        (lambda p: p, "holds no tokenizer"),
    ],
)
def test_what_is_no_tokenizer_is_refused_by_name(tmp_path, make, says):
    path = make(tmp_path)
    with pytest.raises(ValueError, match=says) as caught:
        open_tokenizer(path)
    assert str(path) in str(caught.value)


def test_a_folder_with_a_model_file_names_the_file(model_file):
    with pytest.raises(ValueError, match=f"Name the file: {model_file}"):
        open_tokenizer(model_file.parent)
