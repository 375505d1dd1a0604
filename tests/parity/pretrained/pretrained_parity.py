# SPDX-License-Identifier: Apache-2.0
"""The transformers of models/ against the package `transformers`: logits of the same random weights, in both directions.

Hugging Face's model saves its weights; the program loads them and computes logits of the same inputs. Then another model of
Hugging Face, with other weights, loads what the program writes, and must have the logits of the first. Both sides compute in double
precision: logits agree to 1e-12 of the largest; those of LLaMA to 1e-5, since `transformers` has angles of rotary positions in single
precision.

usage: pretrained_parity.py <pretrained_parity program>
"""
import pathlib
import subprocess
import sys
import tempfile

import torch
import torchvision_operators  # noqa: F401
import transformers
from safetensors.torch import load_file, save_file

TOLERANCE = 1e-12
TOLERANCE_OF_LLAMA = 1e-5
# Those of tests/small_transformers.h.
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 16}
# Tensors of a model that are others again, or no weights.
SHARED = {"lm_head.weight", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
BERTS = {"bert": transformers.BertForMaskedLM, "bert_pretraining": transformers.BertForPreTraining,
         "bert_classifier": transformers.BertForSequenceClassification}
OUTPUTS = {"bert_pretraining": ("prediction_logits", "seq_relationship_logits")}


def make(architecture):
    """Returns a function that makes a model with random weights, and its inputs by the names of the program and of forward."""
    tokens = torch.randint(50, (2, 8))
    if architecture.startswith("gpt2"):
        config = transformers.GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=2, n_head=4,
                                         tie_word_embeddings=architecture == "gpt2")
        return lambda: transformers.GPT2LMHeadModel(config), {"tokens": tokens}, {"input_ids": tokens}
    if architecture == "llama":
        config = transformers.LlamaConfig(vocab_size=50, max_position_embeddings=8, intermediate_size=20,
                                          num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False, **LAYERS)
        return lambda: transformers.LlamaForCausalLM(config), {"tokens": tokens}, {"input_ids": tokens}
    if architecture in BERTS:
        config = transformers.BertConfig(vocab_size=50, max_position_embeddings=8, intermediate_size=64, num_labels=3,
                                         layer_norm_eps=0.1 if architecture == "bert_pretraining" else 1e-12, **LAYERS)
        segments, is_padding = torch.randint(2, (2, 8)), torch.zeros(2, 8, dtype=torch.bool)
        is_padding[1, 6:] = True
        return (lambda: BERTS[architecture](config),
                {"tokens": tokens, "segments": segments, "is_padding": is_padding},
                {"input_ids": tokens, "token_type_ids": segments, "attention_mask": (~is_padding).long()})
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_labels=5, intermediate_size=20, **LAYERS)
    images = torch.randn(2, 3, 8, 8, dtype=torch.double)
    return lambda: transformers.ViTForImageClassification(config), {"images": images}, {"pixel_values": images}


def check_generation(architecture, model, tokens, ours):
    """The likeliest continuation of three tokens, and the probabilities that sampling draws from."""
    options = {"attention_mask": torch.ones(2, 3, dtype=torch.long), "pad_token_id": 0, "eos_token_id": None}
    expected = model.generate(tokens[:, :3], do_sample=False, max_new_tokens=5, **options)
    if not ours["continuation"].equal(expected):
        sys.exit(f"{architecture}: continues by {ours['continuation']}, expected {expected}")
    scores = model(tokens).logits[:, -1]
    for processor in (transformers.TemperatureLogitsWarper(0.7), transformers.TopKLogitsWarper(20), transformers.TopPLogitsWarper(0.8)):
        scores = processor(tokens, scores)
    compare(architecture, "probabilities", ours["probabilities"], scores.softmax(-1))


def random_model(make_model):
    model = make_model().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # also of biases and norms, which begin as 0 and 1
            parameter.normal_(0, 0.5)
    return model


def compare(architecture, what, actual, expected):
    error = (actual - expected).abs().max().item() / expected.abs().max().item()
    allowed = TOLERANCE_OF_LLAMA if architecture == "llama" else TOLERANCE
    if not error <= allowed:
        sys.exit(f"{architecture}: {what} differ by {error:.2g} of the largest, allowed {allowed}")


def check(program, architecture, folder):
    torch.manual_seed(1)
    make_model, inputs, arguments = make(architecture)
    model = random_model(make_model)
    model.save_pretrained(folder)
    save_file(inputs, folder / "inputs.safetensors")
    files = [folder / name for name in ("model.safetensors", "inputs.safetensors", "logits.safetensors", "again.safetensors")]
    run = subprocess.run([program, architecture, *files], capture_output=True, text=True, check=False)
    if run.returncode or run.stdout:
        sys.exit(f"{architecture}: {run.stdout}{run.stderr}")
    with torch.no_grad():
        outputs = OUTPUTS.get(architecture, ("logits",))
        expected = model(**arguments)
        ours = load_file(files[2])
        for output in outputs:
            compare(architecture, output, ours[output], expected[output])
        if "continuation" in ours:
            check_generation(architecture, model, inputs["tokens"], ours)
        again = random_model(make_model)
        missing, unexpected = again.load_state_dict(load_file(files[3]), strict=False)
        if unexpected or set(missing) - SHARED:
            sys.exit(f"{architecture}: the written weights lack {missing} and have no use for {unexpected}")
        actual = again(**arguments)
        for output in outputs:
            compare(architecture, f"{output} of the written weights", actual[output], expected[output])


def main():
    for architecture in ("gpt2", "gpt2_untied", "llama", *BERTS, "vit"):
        with tempfile.TemporaryDirectory() as folder:
            check(sys.argv[1], architecture, pathlib.Path(folder))
        print(f"{architecture}: the same logits in both directions")


if __name__ == "__main__":
    main()
