"""Noising 60,000 reports on one core: unit images by Gaussian noise, and labelled directions."""

from __future__ import annotations

import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from sfumato.local import GaussianVector, LabelledDirection
from sfumato.randomness import SecretStream, public_generator

PEOPLE, PIXELS, DIRECTIONS = 60_000, 784, 40


def main() -> None:
    os.sched_setaffinity(0, {0})  # one core, whatever the machine has
    generator = public_generator(0)
    images = generator.random((PEOPLE, PIXELS), dtype=np.float32)
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    noise = GaussianVector.calibrated(dimension=PIXELS, epsilon=8.0, delta=1e-5)
    noise.release(images[:100], SecretStream())  # threads and libraries are there
    _report("gaussian, 784 values", lambda: noise.release(images, SecretStream()))
    directions = images[:, :DIRECTIONS].astype(np.float64)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    labels = generator.integers(10, size=PEOPLE)
    joint = LabelledDirection(classes=10, dimension=DIRECTIONS, epsilon=8.0)
    _report("label and 40 directions", lambda: joint.release(labels, directions, SecretStream()))


def _report(name: str, work: object) -> None:
    cpu, wall = time.process_time(), time.perf_counter()
    work()  # type: ignore[operator]
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(f"{name:<26} {PEOPLE:,} reports: {cpu:6.2f} s of CPU, {wall:6.2f} s on the clock")


if __name__ == "__main__":
    main()
