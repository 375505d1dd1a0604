# SPDX-License-Identifier: Apache-2.0
"""Times training steps of transformers in PyTorch: bench/multi/workloads.cpp by what its users have.

Models, weights, batches and AdamW are the same. `--mode` is one of

    ddp, fsdp2          DistributedDataParallel and fully_shard, as in data_parallel.py
    zero1, zero2, zero3 DeepSpeed
    tensor_pipeline     DTensor (parallelize_module) within stages of torch.distributed.pipelining
    experts             data parallel, with experts divided over ranks by an all-to-all that is written by hand
    plain               one process
"""
import argparse
import contextlib
import json
import os

import torch
import torch.distributed as dist
from data_parallel import GPT, PeakMemory, median_time, wrapped
from pipeline import Embeddings, fill, numbers
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

IGNORED = -100


class EncoderLayer(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(hidden, hidden) for _ in range(4))
        self.attention_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.mlp_input, self.mlp_output = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.mlp_norm = nn.LayerNorm(hidden, eps=1e-12)

    def forward(self, features):
        parts = [product(features).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                 for product in (self.query, self.key, self.value)]
        mixed = functional.scaled_dot_product_attention(*parts)
        attended = self.attention_norm(features + self.output(mixed.transpose(1, 2).flatten(2)))
        return self.mlp_norm(attended + self.mlp_output(functional.gelu(self.mlp_input(attended))))


class BERT(nn.Module):
    """models/bert.cpp without dropout, for masked tokens."""

    def __init__(self, vocabulary, sequence, hidden, layers, heads):
        super().__init__()
        self.head_bias = nn.Parameter(torch.zeros(vocabulary))
        self.token_embedding = nn.Embedding(vocabulary, hidden)
        self.position_embedding = nn.Embedding(sequence, hidden)
        self.segment_embedding = nn.Embedding(2, hidden)
        self.embedding_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.blocks = nn.Sequential(*(EncoderLayer(hidden, heads) for _ in range(layers)))
        self.transform = nn.Linear(hidden, hidden)
        self.transform_norm = nn.LayerNorm(hidden, eps=1e-12)

    def forward(self, tokens):
        positions = torch.arange(tokens.size(1))
        features = (self.token_embedding(tokens) + self.position_embedding(positions) +
                    self.segment_embedding(torch.zeros_like(tokens)))
        features = self.blocks(self.embedding_norm(features))
        outputs = self.transform_norm(functional.gelu(self.transform(features)))
        return functional.linear(outputs, self.token_embedding.weight, self.head_bias)


class AllToAll(torch.autograd.Function):
    """Sends the i-th of as many parts as there are ranks to rank i."""

    @staticmethod
    def forward(ctx, parts):
        parts = parts.contiguous()
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts)
        return received

    @staticmethod
    def backward(ctx, gradient):
        return AllToAll.forward(ctx, gradient)


class Experts(nn.Module):
    """models::MixtureOfExperts: two experts a token, and room for 1.25 times an even share. This rank has a part of the experts."""

    def __init__(self, hidden, experts):
        super().__init__()
        self.experts = experts
        self.input_weight = nn.Parameter(torch.empty(experts, hidden, 4 * hidden))
        self.input_bias = nn.Parameter(torch.zeros(experts, 1, 4 * hidden))
        self.output_weight = nn.Parameter(torch.empty(experts, 4 * hidden, hidden))
        self.output_bias = nn.Parameter(torch.zeros(experts, 1, hidden))
        self.router = nn.Linear(hidden, experts, bias=False)

    def divide(self):
        """Keeps this rank's experts. Their gradients come from the batches of all ranks, whose losses are averaged."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        for name in ("input_weight", "input_bias", "output_weight", "output_bias"):
            own = nn.Parameter(getattr(self, name).detach().chunk(ranks)[rank].clone())
            own.register_hook(lambda gradient: gradient / ranks)
            setattr(self, name, own)

    def routed(self, slots, capacity):
        """Maps the slots of this rank's rows, [rows, experts * capacity, hidden], by the experts that they belong to."""
        rows, ranks = slots.size(0), dist.get_world_size()
        own = self.experts // ranks
        of_experts = slots.unflatten(1, (self.experts, capacity)).transpose(0, 1).flatten(1, 2)
        # [ranks, own experts, rows * capacity, hidden]: by the rank that has the experts, then by the rank of the rows.
        arrived = AllToAll.apply(of_experts.unflatten(0, (ranks, own)))
        inputs = arrived.transpose(0, 1).flatten(1, 2)
        wide = functional.gelu(torch.baddbmm(self.input_bias, inputs, self.input_weight))
        outputs = torch.baddbmm(self.output_bias, wide, self.output_weight)
        back = AllToAll.apply(outputs.unflatten(1, (ranks, rows * capacity)).transpose(0, 1))
        return back.flatten(0, 1).unflatten(1, (rows, capacity)).transpose(0, 1).flatten(1, 2)

    def forward(self, features):
        sequence, hidden = features.shape[1:]
        capacity = -(-5 * 2 * sequence // (4 * self.experts))
        probabilities = self.router(features).softmax(-1)
        highest, chosen = probabilities.topk(2, -1)
        choices = chosen.transpose(1, 2).flatten(1)
        is_chosen = functional.one_hot(choices, self.experts)
        places = (is_chosen.cumsum(1) * is_chosen).sum(-1) - 1
        is_full = places >= capacity
        num_slots = self.experts * capacity
        slots = (choices * capacity + places).masked_fill(is_full, num_slots)
        shares = (highest / highest.sum(-1, keepdim=True)).transpose(1, 2).flatten(1).masked_fill(is_full, 0)
        index = slots.unsqueeze(-1).expand(-1, -1, hidden)
        inputs = features.new_zeros(features.size(0), num_slots + 1, hidden).scatter(1, index, features.repeat(1, 2, 1))
        outputs = self.routed(inputs[:, :num_slots], capacity).gather(1, index.clamp_max(num_slots - 1))
        mixed = (outputs * shares.unsqueeze(-1)).unflatten(1, (2, sequence)).sum(1)
        first = is_chosen[:, :sequence].to(probabilities.dtype).mean(1)
        return mixed, (first * probabilities.mean(1)).sum(-1).mean() * self.experts


class MixtureBlock(nn.Module):
    def __init__(self, hidden, heads, experts):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(hidden)
        self.attention_input, self.attention_output = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.mixture = Experts(hidden, experts)

    def forward(self, features):
        parts = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                 for part in self.attention_input(self.norm1(features)).chunk(3, -1)]
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        attended = features + self.attention_output(mixed.transpose(1, 2).flatten(2))
        outputs, balance_loss = self.mixture(self.norm2(attended))
        return attended + outputs, balance_loss


class MixtureGPT(GPT):
    """models/mixture.cpp: every second block has experts."""

    def __init__(self, vocabulary, sequence, hidden, layers, heads, experts):
        super().__init__(vocabulary, sequence, hidden, layers, heads)
        for index in range(1, layers, 2):
            self.blocks[index] = MixtureBlock(hidden, heads, experts)

    def divide(self):
        """Divides the experts over the ranks, and names their parameters."""
        names = []
        for name, module in self.named_modules():
            if isinstance(module, Experts):
                module.divide()
                names += [f"{name}.{parameter}" for parameter, _ in module.named_parameters(recurse=False)]
        return names

    def forward(self, tokens):
        features = self.token_embedding(tokens) + self.position_embedding(torch.arange(tokens.size(1)))
        balance_loss = 0
        for block in self.blocks:
            if isinstance(block, MixtureBlock):
                features, loss = block(features)
                balance_loss = balance_loss + loss
            else:
                features = block(features)
        return self.head(self.norm(features)), balance_loss


MODELS = {
    "gpt": lambda: GPT(vocabulary=8192, sequence=128, hidden=256, layers=4, heads=4),
    "bert": lambda: BERT(vocabulary=8192, sequence=128, hidden=256, layers=4, heads=4),
    "long": lambda: GPT(vocabulary=512, sequence=8192, hidden=256, layers=2, heads=4),
    "experts": lambda: MixtureGPT(vocabulary=2048, sequence=128, hidden=256, layers=4, heads=4, experts=8),
}
VOCABULARY = {"gpt": 8192, "bert": 8192, "long": 512, "experts": 2048}
SEQUENCE = {"gpt": 128, "bert": 128, "long": 8192, "experts": 128}


def batch_of(model, rows, part):
    """The inputs and targets of one part of the data."""
    more = 0 if model == "bert" else 1
    tokens = torch.randint(VOCABULARY[model], (rows, SEQUENCE[model] + more), generator=numbers(1000 + part))
    if model != "bert":
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    is_masked = torch.rand(tokens.shape, generator=numbers(2000 + part)) < 0.15
    return tokens.masked_fill(is_masked, 4), tokens.masked_fill(~is_masked, IGNORED)


def loss_of(outputs, targets):
    balance_loss = 0
    if isinstance(outputs, tuple):
        outputs, balance_loss = outputs
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten()) + 0.01 * balance_loss


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=1e-2, fused=True)


class Loop:
    """A model that is trained by forward, backward and step, by itself or in a wrapper."""

    def __init__(self, options):
        part, rows = dist.get_rank(), options.rows
        model = MODELS[options.model]()
        fill([model])
        if options.mode == "experts":
            ignored = model.divide()
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
            self.model = wrapped(model, "ddp", [])
            part, rows = 0, options.rows * dist.get_world_size()
        else:
            self.model = wrapped(model, options.mode, list(model.blocks))
        self.batch = batch_of(options.model, rows, part)
        if options.mode == "experts":
            self.batch = [each.chunk(dist.get_world_size())[dist.get_rank()] for each in self.batch]
        self.optimizer = adamw(self.model.parameters())

    def step(self):
        self.optimizer.zero_grad()
        loss = loss_of(self.model(self.batch[0]), self.batch[1])
        loss.backward()
        self.optimizer.step()
        return loss.item()


class DeepSpeedLoop:
    """DeepSpeed's ZeRO, with its own partition of gradients and optimizer state."""

    def __init__(self, options):
        import deepspeed
        model = MODELS[options.model]()
        fill([model])
        config = {"train_micro_batch_size_per_gpu": options.rows, "zero_allow_untested_optimizer": True, "gradient_clipping": 0.0,
                  "zero_optimization": {"stage": int(options.mode[-1]), "overlap_comm": True, "contiguous_gradients": True,
                                        "reduce_bucket_size": 1 << 20, "allgather_bucket_size": 1 << 20}}
        self.engine, *_ = deepspeed.initialize(model=model, optimizer=adamw(model.parameters()), config=config)
        self.batch = batch_of(options.model, options.rows, dist.get_rank())

    def step(self):
        loss = loss_of(self.engine(self.batch[0]), self.batch[1])
        self.engine.backward(loss)
        self.engine.step()
        return loss.item()


class SplitBlock(nn.Module):
    """A block of GPT whose queries, keys and values are a product each, as DTensor wants it to divide them by heads."""

    def __init__(self, block):
        super().__init__()
        self.features = block.attention_output.in_features // block.heads
        self.norm1, self.norm2 = block.norm1, block.norm2
        parts = zip(block.attention_input.weight.chunk(3), block.attention_input.bias.chunk(3))
        self.query, self.key, self.value = (self.product(weight, bias) for weight, bias in parts)
        self.output, self.mlp_input, self.mlp_output = block.attention_output, block.mlp_input, block.mlp_output

    @staticmethod
    def product(weight, bias):
        layer = nn.Linear(weight.size(1), weight.size(0))
        layer.weight, layer.bias = nn.Parameter(weight.detach().clone()), nn.Parameter(bias.detach().clone())
        return layer

    def forward(self, features):
        normed = self.norm1(features)
        parts = [product(normed).unflatten(-1, (-1, self.features)).transpose(1, 2)
                 for product in (self.query, self.key, self.value)]
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        features = features + self.output(mixed.transpose(1, 2).flatten(2))
        return features + self.mlp_output(functional.gelu(self.mlp_input(self.norm2(features))))


class TensorPipelineLoop:
    """Two stages of half of the ranks each, which share the products of a layer."""

    MICRO_BATCHES = 4

    def __init__(self, options):
        ranks = dist.get_world_size()
        mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("pipe", "tensor"))
        stage, tensor = mesh.get_local_rank("pipe"), mesh["tensor"]
        model = MODELS[options.model]()
        fill([model])
        layers = [Embeddings(1, 1, 1), *(SplitBlock(block) for block in model.blocks), model.norm, model.head]
        layers[0].token_embedding, layers[0].position_embedding = model.token_embedding, model.position_embedding
        middle = 1 + (len(layers) - 2) // 2
        piece = nn.Sequential(*(layers[:middle], layers[middle:])[stage])
        columns = dict.fromkeys(("query", "key", "value", "mlp_input"), ColwiseParallel())
        rows = dict.fromkeys(("output", "mlp_output"), RowwiseParallel())
        for layer in piece:
            if isinstance(layer, SplitBlock):
                parallelize_module(layer, tensor, {**columns, **rows})
            elif isinstance(layer, Embeddings):
                parallelize_module(layer, tensor, {"token_embedding": RowwiseParallel(input_layouts=Replicate())})
            elif isinstance(layer, nn.Linear):
                parallelize_module(layer, tensor, ColwiseParallel(output_layouts=Shard(-1), use_local_output=False))
        self.inputs, self.targets = batch_of(options.model, options.rows, 0)
        shape = (options.rows // self.MICRO_BATCHES, SEQUENCE[options.model])
        values = torch.empty(*shape, 256, device="meta", requires_grad=True)
        tokens = torch.empty(shape, dtype=torch.int64, device="meta")
        self.is_last = stage == 1
        logits = torch.empty(*shape, VOCABULARY[options.model], device="meta")
        pipe_stage = pipelining.PipelineStage(piece, stage, 2, torch.device("cpu"), group=mesh["pipe"].get_group(),
                                              input_args=(values if stage else tokens,),
                                              output_args=(logits if self.is_last else values,))
        self.schedule = pipelining.Schedule1F1B(pipe_stage, self.MICRO_BATCHES, loss_fn=loss_of)
        # A fused step takes tensors of one kind.
        kinds = [[each for each in piece.parameters() if isinstance(each, DTensor) == is_divided] for is_divided in (True, False)]
        self.optimizers = [adamw(parameters) for parameters in kinds if parameters]

    def step(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        losses = [] if self.is_last else None
        with loss_parallel() if self.is_last else contextlib.nullcontext():
            self.schedule.step(*([] if self.is_last else [self.inputs]), target=self.targets if self.is_last else None,
                               losses=losses, return_outputs=False)
        for optimizer in self.optimizers:
            optimizer.step()
        if not self.is_last:
            return None
        values = [loss.full_tensor() if hasattr(loss, "full_tensor") else loss for loss in losses]
        return torch.stack([value.detach() for value in values]).mean().item()


LOOPS = {"zero1": DeepSpeedLoop, "zero2": DeepSpeedLoop, "zero3": DeepSpeedLoop, "tensor_pipeline": TensorPipelineLoop}


def measure(options):
    memory = PeakMemory()
    loop = LOOPS.get(options.mode, Loop)(options)
    losses = [loop.step() for _ in range(options.warm_up)]
    starting_memory = memory.end_stretch()
    record = {"losses": losses, "step_time": median_time(options.steps, loop.step)}
    record["peak_memory"] = max(starting_memory, memory.end_stretch())
    return record


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["ddp", "fsdp2", "zero1", "zero2", "zero3", "tensor_pipeline", "experts", "plain"],
                        default="ddp")
    parser.add_argument("--model", choices=list(MODELS), default="gpt")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    record = measure(options)
    of_all = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, record)
    # Parts of the data are averaged; ranks of a stage that has no loss say nothing.
    losses = [other["losses"] for other in of_all if other["losses"] and other["losses"][0] is not None]
    record["losses"] = [sum(step) / len(step) for step in zip(*losses)]
    record["peak_memory"] = max(other["peak_memory"] for other in of_all)
    if dist.get_rank() == 0:
        print(json.dumps(record), flush=True)
    dist.barrier()
    # Now and then Gloo's threads abort the process while Python ends; all is measured by then.
    os._exit(0)


if __name__ == "__main__":
    main()
