"""Words to pieces and back with a pretrained LLM's own tokenizer, whose pieces carry the blank as a *prefix*.

Every word is encoded alone with a blank before it, so a stream that reads word by word gets the pieces of the whole
line. A word ends where the next piece opens one. Text is not normalised.
"""

import json

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from duplex_model.tokenizer import SPACE, WordTokenizer

# Bytes that a vocabulary may lack: control characters, planes 4 to 11, which have no characters, and none of UTF-8's.
DISPENSABLE = {*range(0x20), 0x7F, 0xF1, 0xF2, 0xC0, 0xC1, *range(0xF5, 0x100)}
MARK = "\ufdd0"  # a noncharacter, where a chat template puts the user's text


class BackboneTokenizer(WordTokenizer):
    """A `transformers` fast tokenizer of byte-level pieces, or of pieces with U+2581 and a fallback to bytes."""

    def __init__(self, hf, source_unit="word", target_unit="word", start_ids=None, seed_id=None):
        """hf: the tokenizer; it is changed (no normalisation; special tokens spelled in a text stay text).

        start_ids: s_0..s_p (default: BOS, or EOS where there is none). seed_id: t_0 (default: the same one). Raises
        ValueError for a tokenizer without EOS, or one that cannot spell every text.
        """
        if not isinstance(hf, PreTrainedTokenizerFast):
            raise ValueError(f"{hf.name_or_path}: {type(hf).__name__} is no fast tokenizer; add its tokenizer.json")
        backend = hf.backend_tokenizer
        backend.normalizer, backend.encode_special_tokens = None, True
        self._hf, self._backend = hf, backend
        if hf.eos_token_id is None:
            raise ValueError(f"{hf.name_or_path}: the tokenizer names no EOS token, which has to end every sentence")
        self.eos_id = hf.eos_token_id
        self.bos_id = self.eos_id if hf.bos_token_id is None else hf.bos_token_id
        self.pad_id = self.eos_id if hf.pad_token_id is None else hf.pad_token_id
        self.start_ids = tuple(start_ids or (self.bos_id,))
        self.seed_id = self.bos_id if seed_id is None else seed_id
        self._blank, pieces = piece_bytes(hf)
        special = set(hf.added_tokens_decoder) | set(hf.all_special_ids)
        special |= {i for i, piece in enumerate(pieces) if not piece or has_inner_blank(piece)}
        super().__init__(pieces, sorted(special), source_unit, target_unit)
        ordinary = [(i, piece) for i, piece in enumerate(pieces) if i not in special]
        self.opening_ids = frozenset(i for i, piece in ordinary if piece.startswith(b" "))
        self._byte_ids = {piece[0]: i for i, piece in ordinary if len(piece) == 1}
        missing = set(range(256)) - DISPENSABLE - set(self._byte_ids)
        if missing:
            raise ValueError(
                f"{hf.name_or_path}: the tokenizer has no piece for {len(missing)} of the single bytes and would lose "
                "text; use a model with byte-level pieces or a fallback to bytes"
            )

    @classmethod
    def from_folder(cls, folder, *args, **options):
        """The tokenizer that `save` wrote; further arguments as for the class."""
        return cls(PreTrainedTokenizerFast.from_pretrained(folder), *args, **options)

    def _encode_word_uncached(self, word):
        ids = self._backend.encode(self._blank + word, add_special_tokens=False).ids
        if self._bytes(ids) == b" " + word.encode():
            return tuple(ids)
        # Such as a literal U+2581, which would be read back as a blank. A character that cannot be spelled is left out.
        spelled = (character.encode() for character in " " + word)
        return tuple(self._byte_ids[b] for data in spelled if self._byte_ids.keys() >= set(data) for b in data)

    def save(self, folder):
        """Write the tokenizer's files into `folder`; start and seed are in the model's config."""
        self._hf.save_pretrained(folder)


def piece_bytes(hf):
    """(what stands for a blank in a text to encode, [V] bytes of every piece; none for one that is not there).

    Raises ValueError for a tokenizer of another kind.
    """
    names = hf.convert_ids_to_tokens(list(range(max(hf.get_vocab().values()) + 1)))  # there may be holes
    added = {i: token.content.encode() for i, token in hf.added_tokens_decoder.items()}
    parts = decoder_parts(json.loads(hf.backend_tokenizer.to_str())["decoder"])
    if "ByteLevel" in parts:
        byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
        blank = " "

        def spell(name):  # a control token that is not marked as one has characters that no byte has
            return bytes(byte_of[character] for character in name) if byte_of.keys() >= set(name) else b""

    elif "ByteFallback" in parts:
        blank, spell = SPACE, spell_with_fallback
    else:
        raise ValueError(
            f"{hf.name_or_path}: tokenizers that decode with {', '.join(parts) or 'nothing'} are not supported; use a "
            "model with byte-level pieces or a fallback to bytes"
        )
    return blank, [added[i] if i in added else spell(name or "") for i, name in enumerate(names)]


def decoder_parts(decoder):
    """The types of a tokenizer's decoder (its JSON) and of the parts of a sequence."""
    if decoder is None:
        return []
    return [decoder["type"], *(name for part in decoder.get("decoders", []) for name in decoder_parts(part))]


def spell_with_fallback(name):
    """The bytes of a piece such as "\u2581word" or "<0x41>"."""
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes([int(name[3:5], 16)])
    return name.replace(SPACE, " ").encode()


def has_inner_blank(piece):
    """Whether a piece has a blank other than a single one in front: no word encodes to it."""
    text = piece.removeprefix(b" ").decode("utf-8", errors="ignore")
    return any(character.isspace() for character in text)


def source_start(hf, instruction=None, chat=False):
    """Ids of the source start s_0..s_p with an instruction to the model, or None without one.

    chat: through the tokenizer's chat template, up to where the user's text begins; the instruction is the system's
    turn, or precedes the text in the user's turn if the template has no system role. Raises ValueError if the
    tokenizer has no chat template, or if the template does not show the instruction or the text.
    """
    if not instruction:
        if chat:
            raise ValueError("a chat template needs an instruction; set `prompt`")
        return None
    instruction = instruction.strip()
    if not chat:
        bos = [] if hf.bos_token_id is None else [hf.bos_token_id]
        return [*bos, *hf.encode(instruction, add_special_tokens=False)]
    if not hf.chat_template:
        raise ValueError(f"{hf.name_or_path}: the tokenizer has no chat template; leave out `chat_template`")
    turns = [{"role": "system", "content": instruction}, {"role": "user", "content": MARK}]
    joined = [{"role": "user", "content": f"{instruction}\n\n{MARK}"}]
    for messages in (turns, joined):
        try:
            before, mark, _ = hf.apply_chat_template(messages, tokenize=False).partition(MARK)
        except TemplateError:  # the template's own refusal of a system role
            continue
        if mark and instruction in before:
            return hf.encode(before.removesuffix(" "), add_special_tokens=False)
    raise ValueError(f"{hf.name_or_path}: the chat template does not show the instruction; leave out `chat_template`")
