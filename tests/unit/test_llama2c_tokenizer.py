"""The tokenizer of llama2.c against the text that its author published, and against its own rules."""

import json
import struct
from pathlib import Path

import pytest

from attn.hub.llama2c_tokenizer import END, START, Llama2cTokenizer

STORIES = Path(__file__).parents[2] / "examples" / "data" / "stories260K"
GOLDEN = json.loads((STORIES / "golden_greedy.json").read_text(encoding="utf-8"))
TOKENIZER = Llama2cTokenizer.read(STORIES / "tok512.bin")

BYTES = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]


def tokenizer_of(pieces: dict[bytes, float]) -> Llama2cTokenizer:
    return Llama2cTokenizer([*BYTES, *pieces], [0.0] * len(BYTES) + list(pieces.values()))


def packed(pieces: list[bytes]) -> bytes:
    return struct.pack("<i", 7) + b"".join(struct.pack("<fi", -1.5, len(piece)) + piece for piece in pieces)


def test_the_published_text_is_decoded():
    assert TOKENIZER.decode(GOLDEN["ids"]) == GOLDEN["text"]


def test_the_published_text_is_encoded():
    assert TOKENIZER.encode(GOLDEN["text"]) == GOLDEN["ids"]


def test_the_pieces_are_those_of_the_file():
    assert TOKENIZER.vocab_size == 512
    assert [TOKENIZER.pieces[i] for i in (0, 3, 258, 259, 403)] == [b"<unk>", b"<0x00>", b"<0xFF>", b" t", b" Once"]
    assert [TOKENIZER.scores[i] for i in (0, 259, 511)] == [0.0, 0.0, -252.0]


@pytest.mark.parametrize("text", ["héllo ☃ 日本", " two  spaces ", "a\n\tb", "\x00", "", "<0x41>", "</s>"])
def test_any_text_comes_back(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_a_text_begins_with_the_start_token_and_a_space():
    space = TOKENIZER.pieces.index(b" ")
    assert TOKENIZER.encode("") == [START]
    assert TOKENIZER.encode("☃") == [START, space, *(byte + 3 for byte in "☃".encode())]


def test_the_space_is_taken_away_after_a_start_token_alone():
    once = TOKENIZER.pieces.index(b" Once")
    assert TOKENIZER.decode([START, once, once]) == "Once Once"
    assert TOKENIZER.decode([once]) == " Once"
    assert TOKENIZER.decode([START, once, END, START, once]) == "OnceOnce"


def test_the_best_score_is_merged_first_and_of_equals_the_left_one():
    pieces = {b" ": -9.0, b"a": -9.0, b"b": -9.0, b"c": -9.0, b"ab": -2.0, b"bc": -1.0, b"aa": -3.0}
    tokenizer = tokenizer_of(pieces)
    number = {piece: len(BYTES) + i for i, piece in enumerate(pieces)}
    assert tokenizer.encode("abc") == [START, number[b" "], number[b"a"], number[b"bc"]]
    assert tokenizer.encode("abab") == [START, number[b" "], number[b"ab"], number[b"ab"]]
    assert tokenizer.encode("aaa") == [START, number[b" "], number[b"aa"], number[b"a"]]


def test_of_two_equal_pieces_the_first_is_used():
    pieces = [*BYTES, b" ", b"a", b"a"]
    assert Llama2cTokenizer(pieces, [0.0] * len(pieces)).encode("a") == [START, len(BYTES), len(BYTES) + 1]


def test_a_broken_character_is_shown_as_one():
    assert TOKENIZER.decode([0xE2 + 3]) == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("number", [-1, 512])
def test_a_number_without_a_piece_is_refused(number):
    with pytest.raises(ValueError, match=rf"^a token must lie between 0 and 511; got {number}\.$"):
        TOKENIZER.decode([5, number])


@pytest.mark.parametrize("cut", [1, 4, 9])
def test_a_cut_file_is_refused(tmp_path, cut):
    contents = packed([*BYTES, b"ab"])[:-cut]
    file = tmp_path / "tok.bin"
    file.write_bytes(contents)
    with pytest.raises(
        ValueError, match=rf"tok\.bin must hold whole pieces; got {len(contents)} bytes, the last piece cut"
    ):
        Llama2cTokenizer.read(file)


def test_a_file_without_all_bytes_is_refused(tmp_path):
    file = tmp_path / "tok.bin"
    file.write_bytes(packed(BYTES[:-1]))
    with pytest.raises(ValueError, match=r"tok\.bin must hold 3 \+ 256 pieces at least; got 258\.$"):
        Llama2cTokenizer.read(file)
