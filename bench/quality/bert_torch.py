# SPDX-License-Identifier: Apache-2.0
"""Pre-trains the network of examples/bert in PyTorch under DistributedDataParallel with Gloo: same pairs, masks, batches and schedule.

The network is BertForPreTraining of Hugging Face's package `transformers`. Started by torchrun; bert.py gives the options. Weights,
dropout and the order of pairs come from PyTorch's generators. Rank 0 prints a line of JSON: the mean loss of each step over the ranks,
and the loss of the validation.
"""
import argparse
import json
import pathlib
import sys

import numpy
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from torch_ranks import end, summed, take_step

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/parity"))
import torchvision_operators  # noqa: E402,F401
import transformers  # noqa: E402

IGNORED = -100


class Pairs:
    """The pairs of a folder of `trireme data bert --static` (docs/formats/bert-pairs.md)."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.settings = json.loads((folder / "bert.json").read_text(encoding="utf-8"))
        wide = self.settings["vocabulary_size"] > 2**16
        self.tokens = numpy.fromfile(folder / "tokens.bin", dtype=numpy.uint32 if wide else numpy.uint16).astype(numpy.int64)
        self.labels = numpy.fromfile(folder / "labels.bin", dtype=numpy.int32).astype(numpy.int64)
        self.rows = numpy.load(folder / "pairs.npy")
        self.ends = numpy.append(self.rows[1:, 0], len(self.tokens))

    def batch(self, numbers):
        """Returns tokens, segments, which of them are no padding, and labels, all [pairs, length]; and which second sentences are random."""
        shape = (len(numbers), self.settings["sequence_length"])
        tokens, segments, kept, labels = (torch.zeros(shape, dtype=torch.long) for _ in range(4))
        labels.fill_(IGNORED)
        for row, number in enumerate(numbers):
            begin, second, _ = self.rows[number]
            length = self.ends[number] - begin
            tokens[row, :length] = torch.from_numpy(self.tokens[begin:begin + length])
            labels[row, :length] = torch.from_numpy(self.labels[begin:begin + length])
            segments[row, second - begin:length] = 1
            kept[row, :length] = 1
        return tokens, segments, kept, labels, torch.from_numpy(self.rows[numbers, 2])


def loss_of(model, tokens, segments, kept, labels, is_random):
    outputs = model(input_ids=tokens, token_type_ids=segments, attention_mask=kept)
    masked = functional.cross_entropy(outputs.prediction_logits.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=IGNORED)
    masked = masked / labels.ne(IGNORED).sum().clamp(min=1)
    return masked + functional.cross_entropy(outputs.seq_relationship_logits, is_random)


def optimizer_of(model, rate):
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    return torch.optim.AdamW([{"params": weights, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}], rate)


def share_of_rate(step, steps):
    """The rate of a step from 0 on, as a share of the highest: grows over a tenth of the steps, and falls to 0 along a line."""
    warm_up = steps // 10 + 1
    return (step + 1) / warm_up if step < warm_up else 1 - (step - warm_up) / max(1, steps - warm_up)


@torch.no_grad()
def validate(network, pairs, count, size):
    """Returns the mean loss of the first `count` pairs; each rank computes its batches of them."""
    network.eval()
    total = 0.0
    for begin in range(dist.get_rank() * size, count, dist.get_world_size() * size):
        numbers = numpy.arange(begin, min(begin + size, count))
        total += loss_of(network, *pairs.batch(numbers)).item() * len(numbers)
    return summed(total) / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    for name in ("hidden", "layers", "heads", "batch", "epochs", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pairs = Pairs(options.data)
    torch.manual_seed(options.seed)
    network = transformers.BertForPreTraining(transformers.BertConfig(
        vocab_size=pairs.settings["vocabulary_size"], hidden_size=options.hidden, num_hidden_layers=options.layers,
        num_attention_heads=options.heads, intermediate_size=4 * options.hidden,
        max_position_embeddings=pairs.settings["sequence_length"]))
    model = DistributedDataParallel(network, gradient_as_bucket_view=True)
    torch.manual_seed(1000 * options.seed + rank)  # dropout
    held_out = max(1, len(pairs.rows) // 10)
    rest = len(pairs.rows) - held_out
    in_epoch = rest // (ranks * options.batch)
    steps = options.epochs * in_epoch
    optimizer = optimizer_of(model, options.learning_rate)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: share_of_rate(step, steps))
    losses = []
    for epoch in range(options.epochs):
        order = torch.randperm(rest, generator=torch.Generator().manual_seed(1000 * options.seed + epoch)).numpy() + held_out
        for step in range(in_epoch):
            begin = (step * ranks + rank) * options.batch
            loss = loss_of(model, *pairs.batch(order[begin:begin + options.batch]))
            losses.append(take_step(loss, model, optimizer, scheduler))
    end(losses, validate(network, pairs, held_out, options.batch))


if __name__ == "__main__":
    main()
