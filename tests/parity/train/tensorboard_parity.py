# SPDX-License-Identifier: Apache-2.0
"""TensorBoard reads the event file of a training: every scalar, step and time is what the JSON lines of the same run have.

TensorBoard's own loader verifies lengths and checksums of all records; values are float32.

usage: tensorboard_parity.py <train_parity program>
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def records(folder, kind):
    lines = (folder / "events-rank0.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def compare(accumulator, tag, expected):
    """`expected` are pairs of step and value."""
    events = accumulator.Scalars(tag)
    assert [event.step for event in events] == [step for step, _ in expected], tag
    for event, (_, value) in zip(events, expected, strict=True):
        assert event.value == float32(value), f"{tag}: {event.value} in step {event.step}, expected {float32(value)}"
    return len(events)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([sys.argv[1], name], check=True)
        (file,) = folder.glob("events.out.tfevents.*")
        first = next(iter(EventFileLoader(str(file)).Load()))
        assert first.file_version == "brain.Event:2", first
        accumulator = EventAccumulator(name, size_guidance={"scalars": 0})
        accumulator.Reload()
        steps, evaluations = records(folder, "step"), records(folder, "evaluation")
        assert len(steps) == 180 and len(evaluations) == 30
        step_tags = {
            "train/loss": lambda record: record["loss"],
            "train/learning_rate": lambda record: record["learning_rate"],
            "train/gradient_norm": lambda record: record["gradient_norm"],
            "scalars/learning_rate/0": lambda record: record["scalars"]["learning_rate/0"],
            "scalars/" + 300 * "x": lambda record: 1e30,
        }
        checked = sum(compare(accumulator, tag, [(record["global_step"], of(record)) for record in steps])
                      for tag, of in step_tags.items())
        for tag, key in (("validation/loss", "loss"), ("validation/accuracy", "accuracy")):
            checked += compare(accumulator, tag, [(record["global_step"], record[key]) for record in evaluations])
        checked += compare(accumulator, "train/epoch_loss",
                           [(record["global_step"], record["loss"]) for record in records(folder, "epoch")])
        for phase in steps[0]["seconds"]:
            # Two writers measure the wall clock between their own records, all else is the same number.
            if phase != "total":
                checked += compare(accumulator, f"time/{phase}",
                                   [(record["global_step"], record["seconds"][phase]) for record in steps])
        (began,) = records(folder, "run")
        for event in accumulator.Scalars("train/loss"):
            assert abs(event.wall_time - began["time"]) < 3600, event
    print(f"TensorBoard read {checked} scalars as they were written")


if __name__ == "__main__":
    main()
