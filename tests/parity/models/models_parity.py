# SPDX-License-Identifier: Apache-2.0
"""The transformers of models/ against their formulas in Python torch: one training pass with the same parameters.

The functions here compute the networks from first principles: attention as a softmax of masked scores, rotary positions
as products of complex numbers, patches as rows of an unfolded image, experts token by token. Both sides compute in
double precision, so logits, loss and gradients agree to 1e-10 of each tensor's largest value.

usage: models_parity.py <models_parity program>
"""

import pathlib
import subprocess
import sys
import tempfile

import torch
from torch.nn import functional

import tensor_file

HEADS = 4
TOLERANCE = 1e-10


class Parameters:
    """Parameters of a module by their names below a prefix; notes which were used."""

    def __init__(self, tensors, used, prefix=""):
        self.tensors, self.used, self.prefix = tensors, used, prefix

    def __getitem__(self, name):
        self.used.add(self.prefix + name)
        return self.tensors[self.prefix + name]

    def below(self, name):
        return Parameters(self.tensors, self.used, f"{self.prefix}{name}.")

    def linear(self, name, x):
        y = x @ self[f"{name}.weight"].T
        return y + self[f"{name}.bias"] if f"{self.prefix}{name}.bias" in self.tensors else y


def attention(queries, keys, values, is_causal):
    """Softmax of scores of [batch, heads, sequence, head_size]."""
    scores = queries @ keys.transpose(-1, -2) / queries.size(-1) ** 0.5
    if is_causal:
        is_later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(is_later, -torch.inf)
    return scores.softmax(-1) @ values


def split_heads(x, heads):
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def join_heads(x):
    return x.transpose(1, 2).reshape(x.size(0), x.size(2), -1)


def rms_norm(x, weight, epsilon=1e-5):
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight


def layer_norm(x, parameters, epsilon=1e-6):
    centred = x - x.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + epsilon).sqrt()
    return centred / deviation * parameters["weight"] + parameters["bias"]


def rotate(x, base):
    """Turns feature pairs i and i + size / 2 at position t by t * base^(-2i / size) radians."""
    half = x.size(-1) // 2
    frequencies = base ** (-torch.arange(half, dtype=torch.double) / half)
    angles = torch.outer(torch.arange(x.size(2), dtype=torch.double), frequencies)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], -1)


def llama(parameters, tokens, key_value_heads, base, tied):
    x = parameters["token_embedding.weight"][tokens]
    for layer in range(2):
        block = parameters.below(f"blocks.{layer}")
        normed = rms_norm(x, block["norm1.weight"])
        projections = block.below("attention")
        queries = rotate(split_heads(projections.linear("query", normed), HEADS), base)
        keys = rotate(split_heads(projections.linear("key", normed), key_value_heads), base)
        values = split_heads(projections.linear("value", normed), key_value_heads)
        sharing = torch.arange(HEADS) // (HEADS // key_value_heads)
        mixed = attention(queries, keys[:, sharing], values[:, sharing], is_causal=True)
        x = x + projections.linear("output", join_heads(mixed))
        normed = rms_norm(x, block["norm2.weight"])
        gate = block.linear("mlp_gate", normed)
        x = x + block.linear("mlp_output", gate * gate.sigmoid() * block.linear("mlp_input", normed))
    x = rms_norm(x, parameters["norm.weight"])
    return x @ parameters["token_embedding.weight" if tied else "head.weight"].T


def gelu(x):
    return x * (1 + torch.erf(x / 2**0.5)) / 2


def mixture(parameters, x, per_token, factor):
    """Sends tokens to experts one by one. Returns the outputs and the balance loss."""
    batch, sequence, _ = x.shape
    probabilities = (x @ parameters["router.weight"].T).softmax(-1)
    experts = probabilities.size(-1)
    capacity = -int(-factor * per_token * sequence // experts)
    names = ("input_weight", "input_bias", "output_weight", "output_bias")
    input_weight, input_bias, output_weight, output_bias = (parameters[name] for name in names)
    rows, losses, left_out = [], [], 0
    for row in range(batch):
        ranked = probabilities[row].argsort(-1, descending=True)[:, :per_token]
        taken = [0] * experts
        outputs = [torch.zeros_like(x[row, 0]) for _ in range(sequence)]
        for choice in range(per_token):
            for token in range(sequence):
                expert = ranked[token, choice].item()
                if taken[expert] == capacity:
                    left_out += 1
                    continue
                taken[expert] += 1
                wide = gelu(x[row, token] @ input_weight[expert] + input_bias[expert, 0])
                weight = probabilities[row, token, expert]
                if per_token > 1:
                    weight = weight / probabilities[row, token, ranked[token]].sum()
                outputs[token] = outputs[token] + weight * (wide @ output_weight[expert] + output_bias[expert, 0])
        rows.append(torch.stack(outputs))
        fractions = torch.bincount(ranked[:, 0], minlength=experts) / sequence
        losses.append(experts * (fractions * probabilities[row].mean(0)).sum())
    assert left_out > 0, "no expert was full"
    return torch.stack(rows), torch.stack(losses).mean()


def mixture_gpt(parameters, tokens, per_token):
    x = parameters["token_embedding.weight"][tokens] + parameters["position_embedding.weight"]
    for layer in range(2):
        block = parameters.below(f"blocks.{layer}")
        projected = block.linear("attention.input", layer_norm(x, block.below("norm1"), 1e-5))
        queries, keys, values = (split_heads(part, HEADS) for part in projected.chunk(3, -1))
        x = x + block.linear("attention.output", join_heads(attention(queries, keys, values, is_causal=True)))
        normed = layer_norm(x, block.below("norm2"), 1e-5)
        if layer == 0:
            x = x + block.linear("mlp_output", gelu(block.linear("mlp_input", normed)))
        else:
            mixed, balance_loss = mixture(block.below("mixture"), normed, per_token, 0.75)
            x = x + mixed
    logits = layer_norm(x, parameters.below("norm"), 1e-5) @ parameters["head.weight"].T
    return logits * (1 + balance_loss)


def vit(parameters, images):
    patches = functional.unfold(images, 4, stride=4).transpose(1, 2)
    weight = parameters["patch_embedding.weight"].flatten(1)
    x = patches @ weight.T + parameters["patch_embedding.bias"]
    x = torch.cat([parameters["class_token"].expand(x.size(0), 1, -1), x], 1) + parameters["position_embedding"]
    for layer in range(2):
        block = parameters.below(f"blocks.{layer}")
        normed = layer_norm(x, block.below("norm1"))
        projections = block.below("attention")
        queries, keys, values = (
            split_heads(projections.linear(name, normed), HEADS) for name in ("query", "key", "value"))
        x = x + projections.linear("output", join_heads(attention(queries, keys, values, is_causal=False)))
        wide = gelu(block.linear("mlp_input", layer_norm(x, block.below("norm2"))))
        x = x + block.linear("mlp_output", wide)
    return parameters.linear("head", layer_norm(x, parameters.below("norm"))[:, 0])


# models_parity.cpp has the same sizes.
CASES = {
    "llama": lambda parameters, tokens: llama(parameters, tokens, key_value_heads=2, base=10000.0, tied=False),
    "llama_tied": lambda parameters, tokens: llama(parameters, tokens, key_value_heads=4, base=100.0, tied=True),
    "mixture_1": lambda parameters, tokens: mixture_gpt(parameters, tokens, per_token=1),
    "mixture_2": lambda parameters, tokens: mixture_gpt(parameters, tokens, per_token=2),
    "vit": vit,
}


def main():
    torch.set_num_threads(1)
    for name, forward in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "out.safetensors")
            subprocess.run([sys.argv[1], name, path], check=True)
            given, _ = tensor_file.load(path)
        tensors = {
            key.removeprefix("model."): value.requires_grad_()
            for key, value in given.items() if key.startswith("model.")
        }
        used = set()
        logits = forward(Parameters(tensors, used), given["inputs"])
        loss = functional.cross_entropy(logits.flatten(0, -2), given["targets"].flatten())
        loss.backward()
        assert used == tensors.keys(), f"{name}: {used ^ tensors.keys()}"
        expected = {"logits": logits.detach(), "loss": loss.detach()}
        expected |= {f"gradient.{key}": value.grad for key, value in tensors.items()}
        worst = 0.0
        for key, value in expected.items():
            assert given[key].shape == value.shape, f"{name}: {key} is {list(given[key].shape)}"
            # The gradient of the keys' bias is zero but for rounding: softmax ignores what all scores share.
            difference = ((given[key] - value).abs().max() / value.abs().max().clamp_min(1e-4)).item()
            worst = max(worst, difference)
            assert difference <= TOLERANCE, f"{name}: {key} differs by {difference:.2e} of its largest value"
        print(f"{name}: {len(expected)} tensors agree, largest relative difference {worst:.1e}")


main()
