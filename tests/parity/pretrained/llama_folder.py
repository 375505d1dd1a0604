# SPDX-License-Identifier: Apache-2.0
"""examples/llama goes on from a folder that the packages `transformers` and `tokenizers` have written. The folder that it
saves is loaded by `transformers`, with all weights, and has the loss that the program printed.

usage: llama_folder.py <program> <text>
"""
import pathlib
import re
import subprocess
import sys
import tempfile

import tokenizers
import torch
import torchvision_operators  # noqa: F401
import transformers

SEQUENCE = 32
BOUND = 1e-4


def write_folder(folder, text):
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train([str(text)], vocab_size=400, show_progress=False)
    torch.manual_seed(1)
    config = transformers.LlamaConfig(vocab_size=tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=48,
                                      num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                      max_position_embeddings=SEQUENCE, tie_word_embeddings=True)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def loss_of(folder, tokens):
    model, info = transformers.LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
    problems = {kind: names for kind, names in info.items() if names}
    if problems:
        sys.exit(f"the weights do not fit: {problems}")
    rows = (len(tokens) - 1) // SEQUENCE
    inputs = tokens[: rows * SEQUENCE].view(rows, SEQUENCE)
    targets = tokens[1 : rows * SEQUENCE + 1].view(rows, SEQUENCE)
    with torch.no_grad():
        logits = model.eval()(inputs).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()


def main():
    program, text = sys.argv[1], pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as temporary:
        given, saved = pathlib.Path(temporary) / "given", pathlib.Path(temporary) / "saved"
        tokenizer = write_folder(given, text)
        tokens = torch.tensor(tokenizer.encode(text.read_text()).ids)
        held_back = tokens[len(tokens) * 9 // 10 :]
        before = loss_of(given, held_back)
        output = subprocess.run([program, "--text", text, "--pretrained", given, "--save", saved, "--epochs", "2",
                                 "--sequence", str(SEQUENCE), "--write", "5"],
                                check=True, capture_output=True).stdout.decode(errors="replace")
        printed = float(re.search(r"validation loss ([0-9.]+)", output).group(1))
        found = loss_of(saved, held_back)
    print(f"loss {before:.4f} before, {printed:.4f} printed, {found:.4f} of what was saved")
    if abs(printed - found) > BOUND or not found < before - 0.1:
        sys.exit("the losses do not fit")


if __name__ == "__main__":
    main()
