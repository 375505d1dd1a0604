# SPDX-License-Identifier: Apache-2.0
"""Decoded JPEG and PNG files against Pillow, byte for byte.

usage: images_parity.py <images_parity program>
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import warnings
import zlib

import numpy as np
from PIL import Image

SIZES = [(1, 1), (7, 5), (16, 16), (33, 17), (64, 48), (3, 70)]  # width, height
PNG_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # by color type
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def picture(generator, width, height, channels):
    """Smooth colours with some noise, so that a JPEG has all kinds of coefficients."""
    y, x = np.mgrid[:height, :width]
    planes = [127 + 80 * np.sin(x / (3 + c) + c) * np.cos(y / (4 + c)) for c in range(channels)]
    pixels = np.stack(planes, axis=-1) + generator.normal(0, 25, (height, width, channels))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(pixels, color_type, is_interlaced=False, extra=b""):
    """A PNG file of [height, width, channels], uint8 or uint16, as Pillow does not write them."""
    height, width, _ = pixels.shape
    pieces = [pixels[y::dy, x::dx] for x, y, dx, dy in ADAM7] if is_interlaced else [pixels]
    rows = b"".join(b"\0" + row.tobytes() for piece in pieces if piece.size
                    for row in piece.astype(piece.dtype.newbyteorder(">")))
    header = struct.pack(">IIBBBBB", width, height, 8 * pixels.itemsize, color_type, 0, 0, is_interlaced)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(rows)) +
            chunk(b"IEND", b""))


def write_jpegs(folder, generator):
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation
    kinds = {
        "444": ("RGB", {"subsampling": 0, "quality": 95}), "422": ("RGB", {"subsampling": 1}),
        "420": ("RGB", {"subsampling": 2}), "rough": ("RGB", {"quality": 10}),
        "progressive": ("RGB", {"progressive": True}), "optimized": ("RGB", {"optimize": True, "quality": 100}),
        "restarts": ("RGB", {"restart_marker_blocks": 2}), "plain-rgb": ("RGB", {"keep_rgb": True}),
        "turned": ("RGB", {"exif": exif}), "grey": ("L", {}), "grey-progressive": ("L", {"progressive": True}),
        "cmyk": ("CMYK", {"quality": 90}), "cmyk-progressive": ("CMYK", {"progressive": True}),
    }
    for name, (mode, settings) in kinds.items():
        for width, height in SIZES:
            pixels = picture(generator, width, height, len(mode))
            image = Image.fromarray(pixels[:, :, 0] if mode == "L" else pixels, mode=mode)
            image.save(folder / f"{name}-{width}x{height}.jpg", **settings)


def write_pngs(folder, generator):
    for width, height in SIZES:
        size = f"{width}x{height}.png"
        color = Image.fromarray(picture(generator, width, height, 3))
        for mode in ("1", "L", "P", "RGB", "RGBA", "LA"):
            color.convert(mode).save(folder / f"{mode}-{size}")
        for bits in (1, 2, 4):
            color.quantize(2 ** bits).save(folder / f"palette-{bits}-{size}", bits=bits)
        color.quantize(16).save(folder / f"palette-clear-{size}", transparency=bytes(range(0, 160, 10)))
        color.save(folder / f"clear-{size}", transparency=(10, 20, 30))
        for color_type, channels in PNG_CHANNELS.items():
            pixels = picture(generator, width, height, channels)
            (folder / f"interlaced-{color_type}-{size}").write_bytes(png(pixels, color_type, True))
            gamma = chunk(b"gAMA", struct.pack(">I", 100000))
            (folder / f"gamma-{color_type}-{size}").write_bytes(png(pixels, color_type, extra=gamma))
            wide = generator.integers(0, 65536, pixels.shape).astype(np.uint16)
            if color_type != 0:  # Pillow cuts 16-bit grey values off at 255
                (folder / f"wide-{color_type}-{size}").write_bytes(png(wide, color_type))


def main():
    generator = np.random.default_rng(1)
    warnings.simplefilter("ignore")  # of palettes with transparency
    with tempfile.TemporaryDirectory() as name:
        images, results = pathlib.Path(name, "images"), pathlib.Path(name, "results")
        images.mkdir()
        results.mkdir()
        write_jpegs(images, generator)
        write_pngs(images, generator)
        files = sorted(images.iterdir())
        run = subprocess.run([sys.argv[1], results, *files], check=True, capture_output=True, text=True)
        shapes = json.loads(run.stdout)
        failures = 0
        for file in files:
            for mode in ("RGB", "L"):
                with Image.open(file) as image:
                    theirs = np.asarray(image.convert(mode)).reshape(image.height, image.width, -1).transpose(2, 0, 1)
                key = f"{file.name}.{mode}"
                ours = np.fromfile(results / key, np.uint8).reshape(shapes[key])
                if ours.shape == theirs.shape and np.array_equal(ours, theirs):
                    continue
                failures += 1
                difference = np.abs(ours.astype(int) - theirs).max() if ours.shape == theirs.shape else "shape"
                print(f"{key}: {ours.shape}, Pillow {theirs.shape}, largest difference {difference}")
    print(f"{2 * len(files) - failures} of {2 * len(files)} pictures are Pillow's to the last bit")
    return failures


if __name__ == "__main__":
    sys.exit(main() > 0)
