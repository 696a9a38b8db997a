"""Words to pieces and back with SentencePiece, whitespace kept as a *suffix*.

With the suffix, a word's end is known from its own last piece, so a stream never has to look at the next token to know
that a word is complete (see the decision rows of `duplex_model.data`). Text is not normalised, and unknown characters
fall back to bytes.
"""

import codecs
import shutil
from functools import lru_cache
from pathlib import Path

import sentencepiece

PAD, UNK, BOS, EOS, SEED = "<pad>", "<unk>", "<s>", "</s>", "<target>"
SPACE = "\u2581"  # SentencePiece's visible blank
UNITS = ("word", "char")
FILE_NAME = "spm.model"


class WordTokenizer:
    """Words to pieces and back over the bytes of each piece: what all tokenizers share.

    `source_unit`, `target_unit`: latency unit of each side, "word" (set apart by blanks) or "char" (every piece that
    completes a character ends a "word", for languages without blanks).
    `start_ids`: s_0..s_p, the source start. `seed_id`: t_0. `special_ids`: pieces that no text has.
    `opening_ids`: pieces that open a word, where the blank comes before it; None where it comes after.
    """

    opening_ids = None

    def __init__(self, pieces, special_ids, source_unit="word", target_unit="word"):
        """pieces: [V] bytes, with one b" " where a piece carries a blank."""
        for unit in (source_unit, target_unit):
            if unit not in UNITS:
                raise ValueError(f"latency unit {unit!r} is not known; use one of {', '.join(UNITS)}")
        self.source_unit, self.target_unit = source_unit, target_unit
        self._pieces, self.special_ids = pieces, special_ids
        self._special = frozenset(special_ids)
        self._encode_word = lru_cache(maxsize=1 << 17)(self._encode_word_uncached)

    @property
    def vocab_size(self):
        return len(self._pieces)

    @property
    def joiner(self):
        """What stands between two written words: a blank, or nothing for the unit "char"."""
        return " " if self.target_unit == "word" else ""

    def encode_word(self, word):
        """The piece ids of one whitespace-free word, its blank included."""
        return list(self._encode_word(word))

    def _encode_word_uncached(self, word):
        raise NotImplementedError

    def encode(self, text):
        """The piece ids of all words of `text` (split at Unicode whitespace)."""
        return [piece for word in text.split() for piece in self._encode_word(word)]

    def _bytes(self, ids):
        return b"".join(self._pieces[i] for i in ids if i not in self._special)

    def decode(self, ids):
        """The text of `ids`: special tokens and incomplete byte sequences vanish, outer blanks are cut.

        Never returns U+FFFD unless it was in the encoded text.
        """
        return self._bytes(ids).decode("utf-8", errors="ignore").strip()

    def word_complete(self, ids, unit):
        """Whether the pieces `ids` of one started word end it, whatever comes next, under the latency unit `unit`."""
        if unit == "char":
            return ends_character(self._bytes(ids))
        return self.opening_ids is None and self._pieces[ids[-1]].endswith(b" ")

    def word_ends(self, ids, unit):
        """[len(ids)] bools: piece i ends a word under `unit`; where blanks come first, the next piece says so."""
        follows = self.opening_ids is not None and unit == "word"
        ends, start = [], 0
        for i in range(len(ids)):
            if follows:
                ends.append(i + 1 == len(ids) or ids[i + 1] in self.opening_ids)
            else:
                ends.append(self.word_complete(ids[start : i + 1], unit))
            start = i + 1 if ends[-1] else start
        return ends


def ends_character(data):
    """Whether the bytes `data` do not stop inside a UTF-8 character."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
    decoder.decode(data)
    return not decoder.getstate()[0]


class Tokenizer(WordTokenizer):
    """A SentencePiece model whose pieces carry the blank as a suffix."""

    def __init__(self, model_file, source_unit="word", target_unit="word"):
        model_file = Path(model_file)
        if not model_file.is_file():
            raise FileNotFoundError(f"{model_file}: the SentencePiece model is missing; the checkpoint is incomplete")
        self.model_file = model_file
        sp = self._sp = sentencepiece.SentencePieceProcessor(model_file=str(model_file))
        self.pad_id, self.bos_id, self.eos_id, self.seed_id = (sp.piece_to_id(piece) for piece in (PAD, BOS, EOS, SEED))
        self.start_ids = (self.bos_id,)
        size = sp.get_piece_size()
        pieces = [
            bytes([int(piece[3:5], 16)]) if sp.is_byte(i) else piece.replace(SPACE, " ").encode()
            for i, piece in ((i, sp.id_to_piece(i)) for i in range(size))
        ]
        special_ids = [i for i in range(size) if sp.is_control(i) or sp.is_unknown(i)]
        super().__init__(pieces, special_ids, source_unit, target_unit)

    def _encode_word_uncached(self, word):
        # A literal U+2581 in the text would be read back as a blank, so it goes in as bytes.
        *head, last = word.split(SPACE)
        ids = []
        for part in head:
            ids += self._sp.encode(part)
            ids += [self._sp.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE.encode()]
        return tuple(ids + self._sp.encode(last + " "))

    def save(self, folder):
        """Copy the SentencePiece model into `folder`."""
        target = Path(folder) / FILE_NAME
        if target.resolve() != self.model_file.resolve():
            shutil.copyfile(self.model_file, target)


def train_tokenizer(lines, model_file, vocab_size, character_coverage=0.9999):
    """Train a unigram SentencePiece model on `lines` and write it to `model_file`.

    Identity normalisation, whitespace as suffix, byte fallback. The special pieces are pad, unk, BOS, EOS and the seed
    that opens the target.
    """
    model_file = Path(model_file)
    model_file.parent.mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(" ".join(line.split()) + " " for line in lines),
        model_prefix=str(model_file.with_suffix("")),
        vocab_size=vocab_size,
        character_coverage=character_coverage,
        model_type="unigram",
        normalization_rule_name="identity",
        treat_whitespace_as_suffix=True,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        byte_fallback=True,
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        control_symbols=[SEED],
        pad_piece=PAD,
        unk_piece=UNK,
        bos_piece=BOS,
        eos_piece=EOS,
        num_threads=1,
        minloglevel=2,
    )
    model_file.with_suffix(".vocab").unlink()
