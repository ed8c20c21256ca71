"""Ctrl-C while something is put back."""

import signal
import threading

import pytest
import torch
from torch import nn

from sfumato.training.losses import other_weights, undisturbed


@pytest.fixture(autouse=True)
def _heard():
    """Whoever starts the tests in the background has Ctrl-C ignored, and Spark has a handler of its own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_waits_until_the_block_is_over():
    done, before = [], signal.getsignal(signal.SIGINT)

    def work():
        with undisturbed():
            signal.raise_signal(signal.SIGINT)
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_are_let_be():
    ended = []

    def work():
        with undisturbed():
            ended.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended


class Interrupting(nn.Parameter):
    """A weight during whose change of values somebody presses Ctrl-C."""

    pressed = False

    @property
    def data(self):
        return super().data

    @data.setter
    def data(self, value):
        if self.pressed:
            signal.raise_signal(signal.SIGINT)
        torch.Tensor.data.__set__(self, value)


def test_all_weights_are_put_back():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    first = Interrupting(torch.ones(2, 2))
    model[0].weight = first
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(KeyboardInterrupt), other_weights(model):
        first.pressed = True
    first.pressed = False
    assert all(map(torch.equal, before, model.parameters()))
