# SPDX-License-Identifier: Apache-2.0
"""Files of the safetensors package read by Trireme, and Trireme's read by the package, bit for bit.

usage: files_parity.py <checkpoint_parity program>
"""

import pathlib
import subprocess
import sys
import tempfile

import torch

import tensor_file

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8,
    torch.bool,
]


def random_tensor(dtype, shape):
    size = torch.empty(0, dtype=dtype).element_size()
    count = size
    for dimension in shape:
        count *= dimension
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def main():
    torch.manual_seed(1)
    tensors = {"nan": torch.tensor([float("nan"), float("inf"), -0.0]), "quote\"and\\slash/é": torch.ones(1)}
    for dtype in DTYPES:
        for shape in [(), (0, 3), (1,), (7, 5), (2, 3, 4, 5)]:
            tensors[f"{dtype}.{'x'.join(map(str, shape)) or 'scalar'}"] = random_tensor(dtype, shape)
    metadata = {"format": "pt", "note": "ünïcode \"quoted\""}

    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = pathlib.Path(folder, "theirs.safetensors"), pathlib.Path(folder, "ours.safetensors")
        tensor_file.save(tensors, theirs, metadata)
        subprocess.run([sys.argv[1], "copy", theirs, ours], check=True)
        loaded, got = tensor_file.load(ours)
        assert loaded.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape, name
            assert torch.equal(tensor_file.bits(loaded[name]), tensor_file.bits(tensor)), name
        assert metadata.items() <= got.items(), got
        assert sum(key.startswith("trireme.crc32.") for key in got) == len(tensors)
        data_begin = 8 + int.from_bytes(ours.read_bytes()[:8], "little")
        assert data_begin % 64 == 0
    print(f"{len(tensors)} tensors of {len(DTYPES)} dtypes are the same both ways")


main()
