# SPDX-License-Identifier: Apache-2.0
"""Tokens of Trireme's BpeTokenizer against those of the package `tokenizers`, for many texts and several tokenizers.

usage: tokenizer_parity.py <tokenizer_parity program>

A vocabulary is trained here on the project's own documents. Of it are made GPT-2's two files, and tokenizer.json in the
ways in which GPT-2, Llama 3, GPT-4o, StarCoder and RoBERTa cut texts.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parents[3]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
GPT4O = "|".join((
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"))
OF_UNICODE = ("naïve café Ünïcödé ÅNGSTRÖM ﬁne ſ", "日本語のテキスト、中文文本。한국어 텍스트", "Ελληνικά и русский и українська",
              "עברית العربية १२३४ ٣٤٥", "👍🏽 👩‍👩‍👧‍👦 🇩🇪 e\u0301 a\u0308", "½ ² Ⅷ ௧ 𝟘𝟙 𝔘𝔫𝔦", "\u00a0\u2003x\u3000y\u0085z\u2028\u2029",
              "ᠮᠣᠩᠭᠣᠯ\u180eᠤᠯᠤᠰ a\u180e\u180e b", "zero\u200bwidth \ufeffbom \U000e0041", "\x00\x01\x1b[0m\x7f")
PLAIN = ("", " ", "  ", "\n", "a", " a", "a ", "Hello world", "we'll they've I'M IT'S don't 'tis ''s", "x=12,5*(y_3);\r\n\r\n\t\tz",
         "1234567890 12 3", "a  b   c    \n  d\n\n\n", "http://example.com/a?b=c#d", "CamelCaseWords and snake_case_words",
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", " " * 100 + "x" + " " * 99, "\t \t \n \r\n ", "<|endoftext|>", "a<|endoftext|>b",
         "<|endoftext|><|end|> <|endoftext|> \n <mask>  b", "the <mask> of  <mask>", "an added tokens here, added token")


def texts():
    rng = random.Random()
    documents = [path.read_text() for path in sorted((ROOT / "docs").glob("*/*.md"))[:6]]
    alphabet = "".join((*OF_UNICODE, *PLAIN)) + " \n'"
    mixed = ["".join(rng.choices(alphabet, k=rng.randrange(1, 60))) for _ in range(1500)]
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


def train(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train([str(path) for path in sorted((ROOT / "docs").glob("*/*.md"))], trainer)
    tokenizer.model.save(folder)
    return tokenizer


def compare(name, program, files, tokenizer, all_texts):
    run = subprocess.run([program, *files], input=json.dumps(all_texts), check=True, capture_output=True, text=True)
    failures = 0
    for text, ours in zip(all_texts, json.loads(run.stdout), strict=True):
        theirs = tokenizer.encode(text, add_special_tokens=False).ids
        decoded = tokenizer.decode(theirs, skip_special_tokens=False)
        if ours["tokens"] != theirs or ours["text"] != decoded:
            failures += 1
            if failures < 4:
                print(f"{name}: {text!r}\n  ours   {ours}\n  theirs {theirs} {decoded!r}")
    print(f"{name}: {len(all_texts) - failures} of {len(all_texts)} equal")
    return failures


def main():
    failures = 0
    all_texts = texts()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = train(folder)
        files = [f"{folder}/vocab.json", f"{folder}/merges.txt"]
        failures += compare("vocab.json and merges.txt", sys.argv[1], files, tokenizer, all_texts)
        tokenizer.add_tokens(ADDED)
        for name, cutter in CUTTERS.items():
            tokenizer.pre_tokenizer = cutter
            content = json.loads(tokenizer.to_str())
            content["model"]["ignore_merges"] = name == "llama3"
            tokenizer = Tokenizer.from_str(json.dumps(content))
            tokenizer.save(f"{folder}/tokenizer.json")
            failures += compare(name, sys.argv[1], [f"{folder}/tokenizer.json"], tokenizer, all_texts)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
