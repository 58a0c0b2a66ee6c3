"""The scenes of the bundled network: handwritten digits as a small 12-bit camera records them, with a class for each
pixel.

The digits are real: scikit-learn's ``load_digits``, which is the test set of "Optical Recognition of Handwritten
Digits" by E. Alpaydin and C. Kaynak (UCI Machine Learning Repository, 1998, https://doi.org/10.24432/C50P49), licensed
CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/). The digits are scaled, rotated, sheared, dimmed and pasted on
a background with noise.

Half of the scenes have hot pixels: pixels of the sensor that record up to full scale, whatever the scene.
"""

from typing import NamedTuple

import numpy as np
from scipy.ndimage import affine_transform
from sklearn.datasets import load_digits

SCENE_SIZE = 96
"""Height and width of a scene, in pixels."""

CLASS_COUNT = 11
"""The number of classes of a pixel: 0 to 9 are the digits, 10 is the background."""

BACKGROUND_CLASS = 10
COUNTS_PER_UNIT = 128
"""Sensor counts per unit of brightness: paper white is 128 counts."""

MAX_SENSOR_COUNT = 4095
"""The highest count of the sensor."""

SPLIT_INDICES = (1150, 1350)
"""The bounds of the three parts of the shuffled digits: training, calibration, and held-out samples."""


class DigitImages(NamedTuple):
    """Images of handwritten digits with their classes.

    Attributes:
        images: float32 (N, 8, 8) in 0 to 1.
        classes: uint8 (N,).
    """

    images: np.ndarray
    classes: np.ndarray


def split_digits(seed: int) -> tuple[DigitImages, DigitImages, DigitImages]:
    """Shuffles scikit-learn's digits and splits them into digits for training, for calibration, and for held-out
    samples."""
    bunch = load_digits()
    order = np.random.default_rng(seed).permutation(len(bunch.target))
    images = (bunch.images[order] / 16).astype(np.float32)
    classes = bunch.target[order].astype(np.uint8)
    train, calibrate, held_out = map(DigitImages, np.split(images, SPLIT_INDICES), np.split(classes, SPLIT_INDICES))
    return train, calibrate, held_out


def _draw_distorted_digit(image: np.ndarray, height: int, rng: np.random.Generator) -> np.ndarray:
    """Returns a slightly rotated and sheared digit, ``height`` pixels high: float32 (height, height) in 0 to 1."""
    angle, shear, stretch = rng.normal(0, 0.12), rng.normal(0, 0.1), rng.uniform(0.85, 1.15)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    matrix = turn @ np.array([[1, 0], [shear, stretch]]) * (9 / height)
    offset = 3.5 - matrix @ np.full(2, (height - 1) / 2)
    warped: np.ndarray = affine_transform(image, matrix, offset, (height, height), order=1)
    return warped


def _find_empty_square(labels: np.ndarray, height: int, rng: np.random.Generator) -> tuple[int, int] | None:
    """Returns the upper left corner of an empty square of ``height`` pixels; None if twelve random attempts find
    none."""
    for top, left in rng.integers(0, SCENE_SIZE - height + 1, (12, 2)):
        if (labels[top : top + height, left : left + height] == BACKGROUND_CLASS).all():
            return int(top), int(left)
    return None


def compose_scene(digits: DigitImages, rng: np.random.Generator, hot_pixels: bool) -> tuple[np.ndarray, np.ndarray]:
    """Composes one scene of up to eight digits.

    Args:
        digits: The digits to choose from.
        rng: The source of all random choices.
        hot_pixels: True if the sensor has hot pixels.

    Returns:
        The image, float32 (SCENE_SIZE, SCENE_SIZE), in units of paper white, a multiple of 1 / COUNTS_PER_UNIT. And the
            class of each pixel, uint8 (SCENE_SIZE, SCENE_SIZE).
    """
    rows, columns = np.mgrid[0:SCENE_SIZE, 0:SCENE_SIZE].astype(np.float32) / SCENE_SIZE - 0.5
    slope = rng.uniform(-0.12, 0.12, 2)
    image = rng.uniform(0.1, 0.25) + slope[0] * rows + slope[1] * columns
    labels = np.full((SCENE_SIZE, SCENE_SIZE), BACKGROUND_CLASS, np.uint8)
    for digit_index in rng.choice(len(digits.classes), 8, replace=False):
        height = int(rng.integers(18, 37))
        corner = _find_empty_square(labels, height, rng)
        if corner is None:
            continue
        square = np.s_[corner[0] : corner[0] + height, corner[1] : corner[1] + height]
        ink = _draw_distorted_digit(digits.images[digit_index], height, rng)
        image[square] += rng.uniform(0.25, 0.8) * ink
        labels[square][ink > 0.4] = digits.classes[digit_index]
    image += rng.normal(0, 0.03, image.shape)
    counts = np.clip(np.rint(image * COUNTS_PER_UNIT), 0, MAX_SENSOR_COUNT)
    if hot_pixels:
        number = int(rng.integers(2, 9))
        pixel_indices = tuple(rng.integers(0, SCENE_SIZE, (2, number)))
        counts[pixel_indices] = rng.integers(MAX_SENSOR_COUNT // 4, MAX_SENSOR_COUNT + 1, number)
    return (counts / COUNTS_PER_UNIT).astype(np.float32), labels


def compose_scenes(digits: DigitImages, rng: np.random.Generator, scene_count: int) -> tuple[np.ndarray, np.ndarray]:
    """Composes ``scene_count`` scenes; every second scene has hot pixels.

    Returns:
        Images, float32 (scene_count, 1, SCENE_SIZE, SCENE_SIZE), and classes, uint8 (scene_count, SCENE_SIZE,
            SCENE_SIZE).
    """
    scenes = [compose_scene(digits, rng, hot_pixels=index % 2 == 1) for index in range(scene_count)]
    images, labels = zip(*scenes, strict=True)
    return np.stack(images)[:, None], np.stack(labels)
