# SPDX-License-Identifier: Apache-2.0
"""Tokens of Trireme's tokenizers against those of the package `tokenizers`, for many texts and several tokenizers.

usage: tokenizer_parity.py <tokenizer_parity program> thorough|slow

slow compares everything, thorough some tokenizers of each kind with fewer texts.

Vocabularies are trained here on the project's own documents. Of one of BPE are made GPT-2's two files, and tokenizer.json
in the ways in which GPT-2, Llama 3, GPT-4o, StarCoder and RoBERTa cut texts; of one of WordPiece BERT's vocab.txt, and
tokenizer.json with all that can be set.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parents[3]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
GPT4O = "|".join((
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"))
DOCUMENTS = [str(path) for path in sorted((ROOT / "docs").glob("*/*.md"))]
OF_UNICODE = ("naïve café Ünïcödé ÅNGSTRÖM ﬁne ſ", "日本語のテキスト、中文文本。한국어 텍스트", "Ελληνικά и русский и українська",
              "עברית العربية १२३४ ٣٤٥", "👍🏽 👩‍👩‍👧‍👦 🇩🇪 e\u0301 a\u0308", "½ ² Ⅷ ௧ 𝟘𝟙 𝔘𝔫𝔦", "\u00a0\u2003x\u3000y\u0085z\u2028\u2029",
              "ᠮᠣᠩᠭᠣᠯ\u180eᠤᠯᠤᠰ a\u180e\u180e b", "zero\u200bwidth \ufeffbom \U000e0041", "\x00\x01\x1b[0m\x7f")
PLAIN = ("", " ", "  ", "\n", "a", " a", "a ", "Hello world", "we'll they've I'M IT'S don't 'tis ''s", "x=12,5*(y_3);\r\n\r\n\t\tz",
         "1234567890 12 3", "a  b   c    \n  d\n\n\n", "http://example.com/a?b=c#d", "CamelCaseWords and snake_case_words",
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", " " * 100 + "x" + " " * 99, "\t \t \n \r\n ", "<|endoftext|>", "a<|endoftext|>b",
         "<|endoftext|><|end|> <|endoftext|> \n <mask>  b", "the <mask> of  <mask>", "an added tokens here, added token",
         "[CLS] Is it [MASK]? [SEP] [cls][PAD][PAD]", "don't do not, 'tis I'm they've we're. \u00bfNo! ...", "p" * 101, "p" * 100,
         "\u00c9t\u00e9 \u00e9t\u00e9 ETE\u0301 \u0130stanbul \u039f\u03a3 \u1e9e \u01c5", "\u4e2d\u6587a\uf900\U00020000b\U0002b820")


def texts(count):
    rng = random.Random()
    documents = [pathlib.Path(path).read_text() for path in DOCUMENTS[:6]]
    alphabet = "".join((*OF_UNICODE, *PLAIN)) + " \n'"
    mixed = ["".join(rng.choices(alphabet, k=rng.randrange(1, 60))) for _ in range(count)]
    return [*PLAIN, *OF_UNICODE, *documents, *mixed]


def byte_level(use_regex=True, prefix=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)


def split(expression, pattern=Regex):
    return pre_tokenizers.Split(pattern(expression), behavior="isolated")


CUTTERS = {
    "gpt2": byte_level(),
    "prefix": byte_level(prefix=True),
    "whole": byte_level(use_regex=False),
    "llama3": pre_tokenizers.Sequence([split(LLAMA3), byte_level(use_regex=False)]),
    "gpt4o": pre_tokenizers.Sequence([split(GPT4O), byte_level(use_regex=False)]),
    "starcoder": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()]),
    "string": pre_tokenizers.Sequence([pre_tokenizers.Digits(), split("(y", str), byte_level()]),
}
ADDED = [AddedToken("<|endoftext|>", special=True, normalized=False), AddedToken("<|end|>", special=True, normalized=False),
         AddedToken("<mask>", special=True, lstrip=True, normalized=False), AddedToken("added token", normalized=False)]


def train_bpe(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train(DOCUMENTS, trainer)
    tokenizer.model.save(folder)
    return tokenizer


def ours(program, arguments, all_texts):
    run = subprocess.run([program, *arguments], input=json.dumps(all_texts), check=True, capture_output=True, text=True)
    return json.loads(run.stdout)


def compare(name, program, arguments, tokenizer, all_texts):
    failures = 0
    for text, result in zip(all_texts, ours(program, arguments, all_texts), strict=True):
        theirs = tokenizer.encode(text, add_special_tokens=False).ids
        decoded = tokenizer.decode(theirs, skip_special_tokens=False)
        if result["tokens"] != theirs or result["text"] != decoded:
            failures += 1
            if failures < 4:
                print(f"{name}: {text!r}\n  ours   {result}\n  theirs {theirs} {decoded!r}")
    print(f"{name}: {len(all_texts) - failures} of {len(all_texts)} equal")
    return failures


def compare_bpe(program, folder, all_texts, names):
    tokenizer = train_bpe(folder)
    files = [f"{folder}/vocab.json", f"{folder}/merges.txt"]
    failures = compare("vocab.json and merges.txt", program, ["bpe", *files], tokenizer, all_texts)
    tokenizer.add_tokens(ADDED)
    for name in names:
        tokenizer.pre_tokenizer = CUTTERS[name]
        content = json.loads(tokenizer.to_str())
        content["model"]["ignore_merges"] = name == "llama3"
        tokenizer = Tokenizer.from_str(json.dumps(content))
        tokenizer.save(f"{folder}/tokenizer.json")
        failures += compare(name, program, ["bpe", f"{folder}/tokenizer.json"], tokenizer, all_texts)
    return failures


BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT_ADDED = [AddedToken("Fort\u00e9 End", normalized=True), AddedToken("token", lstrip=True, rstrip=True, normalized=True),
              AddedToken("Hello", normalized=False, rstrip=True), AddedToken("<mask>", special=True, lstrip=True),
              AddedToken("\u4e2d", normalized=True)]
UNCASED = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
# What differs from BERT's uncased tokenizer: of its normalizer, and of the file.
WORD_PIECES = {
    "uncased": ({}, {}),
    "cased": ({"lowercase": False}, {}),
    "with accents": ({"strip_accents": False}, {}),
    "without accents": ({"strip_accents": True, "lowercase": False}, {}),
    "not cleaned": ({"clean_text": False}, {}),
    "no Chinese": ({"handle_chinese_chars": False}, {}),
    "nothing": ({"clean_text": False, "handle_chinese_chars": False, "lowercase": False}, {}),
    "no normalizer": (None, {}),
    "short words": ({}, {"max_input_chars_per_word": 6}),
    "other prefix": ({}, {"prefix": "@@"}),
    "not cleaned up": ({}, {"cleanup": False}),
    "added": ({}, {"added": BERT_ADDED}),
    "added, cased": ({"lowercase": False}, {"added": BERT_ADDED}),
}


def train_word_piece(prefix, lowercase):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**{**UNCASED, "lowercase": lowercase})
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    alphabet = [character for character in "".join(OF_UNICODE) if not character.isspace()][::2]
    trainer = trainers.WordPieceTrainer(vocab_size=3000, special_tokens=BERT_SPECIAL, initial_alphabet=alphabet,
                                        continuing_subword_prefix=prefix, show_progress=False)
    tokenizer.train(DOCUMENTS, trainer)
    tokenizer.decoder = decoders.WordPiece(prefix=prefix)
    return tokenizer


def compare_word_piece(program, folder, all_texts, kinds, names):
    failures = 0
    for kind in kinds:
        tokenizer = train_word_piece("##", lowercase=kind == "uncased")
        tokenizer.model.save(folder)
        failures += compare(f"vocab.txt, {kind}", program, [f"vocabulary_{kind}", f"{folder}/vocab.txt"], tokenizer, all_texts)
    for name in names:
        of_normalizer, of_file = WORD_PIECES[name]
        tokenizer = train_word_piece(of_file.get("prefix", "##"), lowercase=False)
        tokenizer.normalizer = None if of_normalizer is None else normalizers.BertNormalizer(**{**UNCASED, **of_normalizer})
        tokenizer.decoder = decoders.WordPiece(prefix=of_file.get("prefix", "##"), cleanup=of_file.get("cleanup", True))
        tokenizer.add_tokens(of_file.get("added", []))
        content = json.loads(tokenizer.to_str())
        content["model"]["max_input_chars_per_word"] = of_file.get("max_input_chars_per_word", 100)
        content["model"]["continuing_subword_prefix"] = of_file.get("prefix", "##")
        tokenizer = Tokenizer.from_str(json.dumps(content))
        tokenizer.save(f"{folder}/tokenizer.json")
        failures += compare(f"WordPiece, {name}", program, ["word_piece", f"{folder}/tokenizer.json"], tokenizer, all_texts)
    return failures


def compare_training(program, kinds, sizes):
    """Both merge the most frequent pair, but break ties differently, and the package's own order of ties changes from run to run."""
    documents = [pathlib.Path(path).read_text() for path in DOCUMENTS]
    failures = 0
    for kind in kinds:
        for size, least in sizes:
            tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
            tokenizer.normalizer = normalizers.BertNormalizer(**{**UNCASED, "lowercase": kind == "uncased"})
            tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=BERT_SPECIAL, min_frequency=2, show_progress=False)
            tokenizer.train(DOCUMENTS, trainer)
            tokens = ours(program, [f"train_{kind}", str(size)], documents)
            theirs = tokenizer.get_vocab()
            same = len(set(tokens) & set(theirs))
            print(f"training, {kind}: {same} of {size} tokens are the same")
            failures += not (len(set(tokens)) == len(theirs) == size and same >= least * size)
    return failures


def words_of_unicode(text):
    """BERT's words by the Unicode that Python knows, for text without Chinese characters and spaces."""
    kept = [character for character in text if unicodedata.category(character) not in ("Cc", "Cf", "Co")]
    marked = unicodedata.normalize("NFD", "".join(kept))
    plain = "".join(character.lower() for character in marked if unicodedata.category(character) != "Mn")
    words = [""]
    for character in plain:
        if character.isascii() and not character.isalnum() or unicodedata.category(character).startswith("P"):
            words += [character, ""]
        else:
            words[-1] += character
    return [word for word in words if word]


def compare_characters(program, folder):
    """Each character between two letters. `tokenizers` knows an old Unicode: new characters are as Python has them, if it does."""
    characters = [chr(number) for number in range(0x21, 0x1FFFF) if not 0xD800 <= number < 0xE000]
    vocabulary = {"[UNK]": 0}
    for character in characters:
        vocabulary[character] = len(vocabulary)
        vocabulary["##" + character] = len(vocabulary)
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**UNCASED)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.save(f"{folder}/tokenizer.json")
    all_texts = [f"a{character}b" for character in characters]
    results = ours(program, ["word_piece", f"{folder}/tokenizer.json"], all_texts)
    encodings = tokenizer.encode_batch(all_texts, add_special_tokens=False)
    failures = new = 0
    for text, result, theirs in zip(all_texts, results, encodings, strict=True):
        if result["tokens"] == theirs.ids:
            continue
        new += 1
        if unicodedata.category(text[1]) != "Cn" and result["text"].split(" ") != words_of_unicode(text):
            failures += 1
            print(f"U+{ord(text[1]):04X}: ours {result['text']!r}, theirs {theirs.tokens}, Python's {words_of_unicode(text)}")
    print(f"characters: {len(all_texts) - new} of {len(all_texts)} equal, {new - failures} as Python's Unicode "
          f"{unicodedata.unidata_version} has them")
    return failures


def main():
    program, label = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        if label == "thorough":
            all_texts = texts(300)
            failures = compare_bpe(program, folder, all_texts, ["gpt2", "llama3", "string"])
            failures += compare_word_piece(program, folder, all_texts, ["uncased"], ["cased", "other prefix", "added"])
            failures += compare_training(program, ["uncased"], [(500, 0.97)])
        else:
            all_texts = texts(1500)
            failures = compare_bpe(program, folder, all_texts, CUTTERS)
            failures += compare_word_piece(program, folder, all_texts, ["uncased", "cased"], WORD_PIECES)
            failures += compare_training(program, ["uncased", "cased"], [(500, 0.97), (2000, 0.9)])
            failures += compare_characters(program, folder)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
