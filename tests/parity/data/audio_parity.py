# SPDX-License-Identifier: Apache-2.0
"""Sound against NumPy in float64, by the formulas of torchaudio, and WAV files against Python's wave.

usage: audio_parity.py <audio_parity program>

The bounds are parts of the largest value: 2e-6 where numbers are float32, 2e-5 against torchaudio's resampling as it is,
which rounds times and filter to float32.
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile
import wave

import numpy as np
import torch

FLOAT32 = 2e-6


def sinc_filter(from_rate, to_rate, width, rolloff, window):
    """The filter of torchaudio's Resample: [to_rate, taps], and how many taps lie before time 0."""
    base = min(from_rate, to_rate) * rolloff
    reach = math.ceil(width * from_rate / base)
    times = np.arange(-reach, reach + from_rate)[None] / from_rate - np.arange(to_rate)[:, None] / to_rate
    times = np.clip(times * base, -width, width)
    return np.sinc(times) * window(times / width) * base / from_rate, reach


def resampled(x, from_rate, to_rate, width, rolloff, window):
    divisor = math.gcd(from_rate, to_rate)
    from_rate, to_rate = from_rate // divisor, to_rate // divisor
    taps, reach = sinc_filter(from_rate, to_rate, width, rolloff, window)
    padded = np.pad(x, ((0, 0), (reach, reach + from_rate)))
    pieces = np.lib.stride_tricks.sliding_window_view(padded, taps.shape[1], axis=1)[:, ::from_rate]
    return (pieces @ taps.T).reshape(len(x), -1)[:, :math.ceil(to_rate * x.shape[1] / from_rate)]


def hann(part):
    return np.cos(part * np.pi / 2) ** 2


def kaiser(part, beta=9):
    return np.i0(beta * np.sqrt(1 - part ** 2)) / np.i0(beta)


def resampled_by_torchaudio(x, from_rate, to_rate, width=6, rolloff=0.99):
    """torchaudio.functional.resample written out, with its types."""
    divisor = math.gcd(from_rate, to_rate)
    from_rate, to_rate = from_rate // divisor, to_rate // divisor
    base = min(from_rate, to_rate) * rolloff
    reach = math.ceil(width * from_rate / base)
    times = torch.arange(-reach, reach + from_rate, dtype=torch.float64)[None, None] / from_rate
    times = torch.arange(0, -to_rate, -1)[:, None, None] / to_rate + times
    times = (times * base).clamp(-width, width)
    window = torch.cos(times * math.pi / width / 2) ** 2
    times = times * math.pi
    taps = torch.where(times == 0, torch.ones_like(times), times.sin() / times) * window * (base / from_rate)
    padded = torch.nn.functional.pad(torch.from_numpy(x), (reach, reach + from_rate))
    result = torch.nn.functional.conv1d(padded[:, None], taps.to(torch.float32), stride=from_rate)
    result = result.transpose(1, 2).reshape(len(x), -1)
    return result[:, :math.ceil(to_rate * x.shape[1] / from_rate)].numpy()


def spectrogram(x, fft_size=400, window_size=None, hop=None, padding=0, power=2, norm=None, mode="reflect"):
    window_size = window_size or fft_size
    hop = hop or window_size // 2
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window_size) / window_size)
    before = (fft_size - window_size) // 2
    whole_window = np.pad(window, (before, fft_size - window_size - before))
    x = np.pad(x, ((0, 0), (padding, padding)))
    if mode:
        x = np.pad(x, ((0, 0), (fft_size // 2, fft_size // 2)), mode=mode)
    pieces = np.lib.stride_tricks.sliding_window_view(x, fft_size, axis=1)[:, ::hop]
    values = np.fft.rfft(pieces * whole_window, axis=-1).transpose(0, 2, 1)
    if norm == "window":
        values = values / np.sqrt((window ** 2).sum())
    if norm == "frame_length":
        values = values / np.sqrt(fft_size)
    return np.abs(values) ** power


def mel_of(hertz, scale):
    if scale == "htk":
        return 2595 * math.log10(1 + hertz / 700)
    return 3 * hertz / 200 if hertz < 1000 else 15 + 27 * math.log(hertz / 1000) / math.log(6.4)


def hertz_of(mels, scale):
    if scale == "htk":
        return 700 * (10 ** (mels / 2595) - 1)
    return np.where(mels < 15, 200 * mels / 3, 1000 * np.exp(math.log(6.4) / 27 * (mels - 15)))


def filters(frequencies, rate, count, low, high, scale, is_normalized):
    """torchaudio's melscale_fbanks, [frequencies, count]."""
    places = np.linspace(0, rate // 2, frequencies)[:, None]
    corners = hertz_of(np.linspace(mel_of(low, scale), mel_of(high, scale), count + 2), scale)
    steps = np.diff(corners)
    slopes = corners[None] - places
    bank = np.maximum(0, np.minimum(-slopes[:, :-2] / steps[:-1], slopes[:, 2:] / steps[1:]))
    return bank * (2 / (corners[2:] - corners[:-2]) if is_normalized else 1)


def through(spectrum, bank):
    return np.einsum("cft,fm->cmt", spectrum, bank)


def decibel(x, factor, reach=None):
    result = factor * np.log10(np.maximum(x, 1e-10))
    return result if reach is None else np.maximum(result, result.max() - reach)


def expectations(x):
    """Name: (what it should be, bound)."""
    wide = x.astype(np.float64)
    expected = {}
    for rates in [(16000, 8000), (44100, 16000), (8000, 22050), (3, 7)]:
        name = f"resample-{rates[0]}-{rates[1]}"
        expected[f"{name}-hann"] = resampled(wide, *rates, 6, 0.99, hann), FLOAT32
        expected[f"{name}-kaiser"] = resampled(wide, *rates, 20, 0.9, kaiser), FLOAT32
    spectra = {
        "default": {}, "magnitude": {"fft_size": 256, "window_size": 200, "hop": 80, "power": 1},
        "padded": {"fft_size": 128, "padding": 30, "norm": "window"},
        "plain": {"fft_size": 128, "norm": "frame_length", "mode": None},
        "edge": {"fft_size": 100, "power": 3, "mode": "edge"}, "zeros": {"fft_size": 100, "mode": "constant"},
    }
    for name, settings in spectra.items():
        expected[f"spectrogram-{name}"] = spectrogram(wide, **settings), FLOAT32
    htk = filters(201, 16000, 40, 0, 8000, "htk", False)
    slaney = filters(257, 22050, 64, 20, 8000, "slaney", True)
    mel = through(spectrogram(wide), htk)
    expected |= {
        "filters-htk": (htk, FLOAT32), "filters-slaney": (slaney, FLOAT32), "mel-htk": (mel, FLOAT32),
        "mel-slaney": (through(spectrogram(wide, fft_size=512, hop=128), slaney), FLOAT32),
        "decibel": (decibel(mel, 10), FLOAT32), "decibel-range": (decibel(mel, 20, 30), FLOAT32),
    }
    return expected


def write_wavs(folder, generator):
    """Files of Python's wave module, and what is in them."""
    expected = {}
    for width in (1, 2, 3, 4):
        raw = generator.integers(0, 256, (2000, 2, width), dtype=np.uint8)
        with wave.open(str(folder / f"wave-{width}.wav"), "wb") as file:
            file.setparams((2, width, 16000, 0, "NONE", ""))
            file.writeframes(raw.tobytes())
        numbers = sum(raw[:, :, i].astype(np.int64) << (8 * i) for i in range(width))
        half = 1 << (8 * width - 1)
        numbers = numbers - half if width == 1 else (numbers ^ half) - half
        expected[f"wave-{width}"] = (numbers.T / half).astype(np.float32), 0
    return expected


def main():
    generator = np.random.default_rng(1)
    x = (0.3 * generator.standard_normal((2, 4001))).astype(np.float32)
    failures = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        np.save(folder / "waveform.npy", x)
        expected = expectations(x) | write_wavs(folder, generator)
        run = subprocess.run([sys.argv[1], folder], check=True, capture_output=True, text=True)
        shapes = json.loads(run.stdout)
        assert shapes.keys() == expected.keys(), shapes.keys() ^ expected.keys()
        ours = {key: np.fromfile(folder / key, np.float32).reshape(shape) for key, shape in shapes.items()}
    for rates in [(16000, 8000), (44100, 16000), (8000, 22050), (3, 7)]:
        key = f"resample-{rates[0]}-{rates[1]}"
        ours[f"{key}-torchaudio"] = ours[f"{key}-hann"]
        expected[f"{key}-torchaudio"] = resampled_by_torchaudio(x, *rates), 2e-5
    for key, (theirs, bound) in expected.items():
        assert ours[key].shape == theirs.shape, (key, ours[key].shape, theirs.shape)
        worst = np.abs(ours[key] - theirs).max() / np.abs(theirs).max()
        print(f"{key}: {worst:.1e}, at most {bound:.0e}")
        failures += not worst <= bound
    return failures


if __name__ == "__main__":
    sys.exit(main() > 0)
