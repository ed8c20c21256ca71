"""The net of tempered sigmoids: bounded activations keep gradients small, so that clipping costs less.

Papernot, Thakurta, Song, Chien, Erlingsson, *Tempered Sigmoid Activations for Deep Learning with Differential
Privacy* (2020), table 1: its MNIST net is the CNN's with tanh after both convolutions and the hidden layer
("same" padding of an 8×8 kernel at stride 2 is 3 on each side of a 28×28 image).
"""

from __future__ import annotations

from functools import partial

from torch import nn

from sfumato.models.cnn import CNN

TanhCNN = partial(CNN, activation=nn.Tanh)
