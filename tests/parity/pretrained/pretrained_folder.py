# SPDX-License-Identifier: Apache-2.0
"""The folder that examples/bert leaves, loaded by the package `transformers` with all its weights, and its vocabulary.

usage: pretrained_folder.py <folder>
"""
import sys

import torch
import torchvision_operators  # noqa: F401
import transformers


def main():
    folder = sys.argv[1]
    model, info = transformers.BertForPreTraining.from_pretrained(folder, output_loading_info=True)
    problems = {kind: names for kind, names in info.items() if names}
    if problems:
        sys.exit(f"the weights do not fit: {problems}")
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    if len(tokenizer) != model.config.vocab_size:
        sys.exit(f"the vocabulary has {len(tokenizer)} tokens, the model {model.config.vocab_size}")
    with torch.no_grad():
        outputs = model.eval()(**tokenizer("Every rank writes", "its [MASK].", return_tensors="pt"))
    if not torch.isfinite(outputs.prediction_logits).all() or outputs.seq_relationship_logits.shape != (1, 2):
        sys.exit("the logits are not those of a BERT")
    print("loaded with all weights")


if __name__ == "__main__":
    main()
