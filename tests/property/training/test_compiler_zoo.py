"""Models of every kind against a loop over rows: none is known to the compiler, all are exact."""

from __future__ import annotations

import math
from collections import namedtuple
from dataclasses import dataclass
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from sfumato.models import CNN
from sfumato.randomness import SecretStream
from sfumato.training import Flat, default_loss
from sfumato.training.engine import Engine

ROWS, CLASSES, WIDTH, LENGTH, VOCABULARY = 5, 3, 6, 4, 7


def cross_entropy(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


def squared(outputs, targets):
    return (outputs.flatten(1).tanh().mean(1) - targets) ** 2


def classes():
    return torch.randint(0, CLASSES, (ROWS,))


def images(channels=2, *space):
    return torch.randn(ROWS, channels, *(space or (8, 8)), dtype=torch.float64)


def steps(width=WIDTH):
    return torch.randn(ROWS, LENGTH, width, dtype=torch.float64)


def tokens():
    return torch.randint(0, VOCABULARY, (ROWS, LENGTH))


class Pooled(nn.Module):
    """A layer on images or steps, then classes."""

    def __init__(self, *layers, outputs):
        super().__init__()
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(outputs, CLASSES)

    def forward(self, inputs):
        return self.head(self.layers(inputs).flatten(2).mean(2))


class Recurrent(nn.Module):
    def __init__(self, cells, outputs):
        super().__init__()
        self.cells, self.head = cells, nn.Linear(outputs, CLASSES)

    def forward(self, inputs):
        return self.head(self.cells(inputs)[0][:, -1])


class StepsFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.GRU(WIDTH, 5, bidirectional=True), nn.Linear(10, CLASSES)

    def forward(self, inputs):
        return self.head(self.cells(inputs.transpose(0, 1))[0].mean(0))


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.head = nn.MultiheadAttention(WIDTH, 2, batch_first=True), nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs, mask):
        seen = self.mix(inputs, inputs, inputs, key_padding_mask=mask, need_weights=False)[0]
        return self.head(seen.mean(1))


class Encoder(nn.Module):
    def __init__(self, **options):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True, dropout=0.0, **options)
        self.layers, self.head = (
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            nn.Linear(WIDTH, CLASSES),
        )

    def forward(self, inputs):
        return self.head(self.layers(inputs)[:, 0])


class Text(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, WIDTH, **options), nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs):
        return self.head(self.tokens(inputs).tanh().mean(1))


class Bag(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(VOCABULARY, WIDTH, mode=mode), nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs):
        return self.head(self.bag(inputs).tanh())


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.both, self.head = nn.Bilinear(3, 4, 5), nn.Linear(5, CLASSES)

    def forward(self, left, right):
        return self.head(self.both(left, right).tanh())


class Tied(nn.Module):
    """A language model whose decoder is its embedding, used outside the module that owns it."""

    def __init__(self):
        super().__init__()
        self.embedding, self.inner = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs):
        return F.linear(self.inner(self.embedding(inputs)).tanh(), self.embedding.weight)


def language(outputs, targets):
    return F.cross_entropy(outputs.transpose(1, 2), targets, reduction="none").mean(1)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.same, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.scale, self.start = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.parts = nn.ParameterDict({"shift": nn.Parameter(torch.randn(WIDTH))})

    def forward(self, inputs):
        inputs = torch.cat([self.start.expand(len(inputs), -1, -1), inputs], 1)
        seen = self.same(self.same(inputs).relu() * self.scale + self.parts["shift"])
        return self.head(seen.mean(1))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.inner = nn.Conv2d(2, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(4, 3, 2, 2), nn.Conv2d(5, 1, 1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, inputs):
        low = F.silu(self.norm(self.inner(F.gelu(self.down(inputs)))))
        high = self.up(low) + F.interpolate(low[:, :3], scale_factor=2, mode="bilinear")
        return self.out(torch.cat([high, inputs], 1))


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        ctx.save_for_backward(values)
        return values**3

    @staticmethod
    def backward(ctx, gradient):
        (values,) = ctx.saved_tensors
        return 3 * values**2 * gradient


class OwnFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(WIDTH, 4), nn.Linear(4, CLASSES)

    def forward(self, inputs):
        return self.head(Cube.apply(self.first(inputs)))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 4))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, inputs):
        return self.head(checkpoint(self.first, inputs, use_reentrant=False))


Pair = namedtuple("Pair", "scores extra")


@dataclass
class Scored:
    scores: torch.Tensor


class Structured(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.head, self.other = kind, nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, 2)

    def forward(self, inputs):
        scores = self.head(inputs)
        if self.kind == "dict":
            return {"scores": scores, "extra": self.other(inputs)}
        return Pair(scores, self.other(inputs)) if self.kind == "pair" else Scored(scores)


class Experts(nn.Module):
    """All experts run, and the best two count, by a mask."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, CLASSES) for _ in range(3))

    def forward(self, inputs):
        scores = self.gate(inputs)
        weights = torch.zeros_like(scores).scatter(-1, scores.topk(2, -1).indices, 1.0) * scores.softmax(-1)
        return (torch.stack([expert(inputs) for expert in self.experts], -1) * weights.unsqueeze(-2)).sum(-1)


class Indexing(nn.Module):
    """Indices, flips, rolls, sorted values and moments."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(VOCABULARY, WIDTH)), nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs):
        seen = self.table[inputs].flip(1).roll(1, 1).cumsum(1)
        seen = seen.sort(-1).values / (1 + seen.var((1, 2), keepdim=True)) + seen.amax(1, keepdim=True)
        return self.head(seen.logsumexp(1))


class Copying(nn.Module):
    """Copies into memory of its own, and writes there."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs):
        seen = self.first(inputs)
        mine = torch.empty_like(seen)
        mine.copy_(seen)
        mine.select(1, 2).zero_()
        return self.head((1.5 * seen).pow_(2) + mine.masked_fill_(seen > 1, 0.3))


class Turned(nn.Module):
    """Gradients come to a norm with their channels last."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.GroupNorm(1, 2), nn.Linear(128, CLASSES)

    def forward(self, inputs):
        return self.head(self.norm(inputs).permute(0, 2, 3, 1).flatten(1).tanh())


class Einsum(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.out = (nn.Parameter(torch.randn(2, WIDTH, 3)) for _ in range(2))

    def forward(self, inputs):
        seen = torch.einsum("btw,hwd->bhtd", inputs, self.query)
        weights = (seen @ seen.transpose(-1, -2)).softmax(-1)
        return torch.einsum("bhtd,hwd->bw", weights @ seen, self.out)[:, :CLASSES]


def mean_of(outputs, targets):
    return ((outputs - targets) ** 2).flatten(1).mean(1)


def of(name):
    return lambda outputs, targets: (
        cross_entropy(outputs[name] if isinstance(outputs, dict) else getattr(outputs, name), targets)
        + (outputs["extra"].square().mean(1) if isinstance(outputs, dict) else 0)
    )


def seen_norm():
    norm = nn.BatchNorm2d(3)
    norm(torch.randn(20, 3, 4, 4))
    return norm.eval()


def frozen(model, part):
    for parameter in getattr(model, part).parameters():
        parameter.requires_grad_(False)
    return model


PLAIN = {
    "MLP": lambda: (
        nn.Sequential(nn.Linear(WIDTH, 9), nn.ReLU(), nn.Linear(9, CLASSES)),
        steps()[:, 0],
        classes(),
    ),
    "CNN": lambda: (CNN(), torch.randn(ROWS, 1, 28, 28, dtype=torch.float64), classes()),
    "LSTM": lambda: (
        Recurrent(nn.LSTM(WIDTH, 5, 2, batch_first=True, bidirectional=True), 10),
        steps(),
        classes(),
    ),
    "GRU, steps first": lambda: (StepsFirst(), steps(), classes()),
    "RNN": lambda: (Recurrent(nn.RNN(WIDTH, 5, batch_first=True), 5), steps(), classes()),
    "LSTM with projection": lambda: (
        Recurrent(nn.LSTM(WIDTH, 5, batch_first=True, proj_size=2), 2),
        steps(),
        classes(),
    ),
    "attention": lambda: (
        Attentive(),
        (steps(), torch.arange(LENGTH) >= torch.randint(1, 5, (ROWS, 1))),
        classes(),
    ),
    "encoder": lambda: (Encoder(), steps(), classes()),
    "encoder, norm first": lambda: (Encoder(norm_first=True, activation="gelu"), steps(), classes()),
    "embedding": lambda: (Text(padding_idx=2), tokens(), classes()),
    "bag of sums": lambda: (Bag("sum"), tokens(), classes()),
    "bag of means": lambda: (Bag("mean"), tokens(), classes()),
    "bag of maxima": lambda: (Bag("max"), tokens(), classes()),
    "bilinear": lambda: (TwoInputs(), (steps(3)[:, 0], steps(4)[:, 0]), classes()),
    "transposed": lambda: (
        Pooled(nn.ConvTranspose2d(2, 3, 3, 2, 1, output_padding=1), nn.ELU(), outputs=3),
        images(),
        classes(),
    ),
    "grouped": lambda: (
        Pooled(nn.Conv2d(4, 6, 3, groups=2, dilation=2, padding=1), nn.ReLU(), outputs=6),
        images(4),
        classes(),
    ),
    "depthwise": lambda: (
        Pooled(nn.Conv2d(4, 4, 3, groups=4), nn.Hardswish(), outputs=4),
        images(4),
        classes(),
    ),
    "circular": lambda: (
        Pooled(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), nn.Tanh(), outputs=3),
        images(),
        classes(),
    ),
    "reflected": lambda: (
        Pooled(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), nn.Tanh(), outputs=3),
        images(),
        classes(),
    ),
    "one dimension": lambda: (
        Pooled(nn.Conv1d(2, 3, 3, stride=2), nn.LeakyReLU(), nn.MaxPool1d(2), outputs=3),
        images(2, 11),
        classes(),
    ),
    "three dimensions": lambda: (
        Pooled(nn.Conv3d(2, 3, 2), nn.ReLU(), nn.MaxPool3d(2), outputs=3),
        images(2, 5, 5, 5),
        classes(),
    ),
    "pools": lambda: (
        Pooled(nn.Conv2d(2, 3, 3), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2), nn.Softplus(), outputs=3),
        images(),
        classes(),
    ),
    "twice": lambda: (Twice(), steps(), classes()),
    "weight norm": lambda: (
        nn.Sequential(weight_norm(nn.Linear(WIDTH, 4)), nn.Tanh(), nn.Linear(4, CLASSES)),
        steps()[:, 0],
        classes(),
    ),
    "weight norm, convolution": lambda: (
        Pooled(weight_norm(nn.Conv2d(2, 3, 3)), nn.ReLU(), outputs=3),
        images(),
        classes(),
    ),
    "old weight norm": lambda: (
        nn.Sequential(nn.utils.weight_norm(nn.Linear(WIDTH, CLASSES))),
        steps()[:, 0],
        classes(),
    ),
    "orthogonal": lambda: (
        nn.Sequential(orthogonal(nn.Linear(WIDTH, 4)), nn.Linear(4, CLASSES)),
        steps()[:, 0],
        classes(),
    ),
    "spectral norm": lambda: (
        nn.Sequential(spectral_norm(nn.Linear(WIDTH, 4)), nn.Linear(4, CLASSES)).eval(),
        steps()[:, 0],
        classes(),
    ),
    "instance norm": lambda: (
        Pooled(nn.Conv2d(2, 3, 3), nn.InstanceNorm2d(3, affine=True), nn.PReLU(3), outputs=3),
        images(),
        classes(),
    ),
    "batch norm in eval": lambda: (
        Pooled(nn.Conv2d(2, 3, 3), seen_norm(), nn.ReLU(), outputs=3),
        images(),
        classes(),
    ),
    "layer and RMS norm": lambda: (
        nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4), nn.RMSNorm(4), nn.Linear(4, CLASSES)),
        steps()[:, 0],
        classes(),
    ),
    "own function": lambda: (OwnFunction(), steps()[:, 0], classes()),
    "checkpointed": lambda: (Checkpointed(), steps()[:, 0], classes()),
    "experts": lambda: (Experts(), steps()[:, 0], classes()),
    "indexing": lambda: (Indexing(), tokens(), classes()),
    "einsum": lambda: (Einsum(), steps(), classes()),
    "turned": lambda: (Turned(), images(), classes()),
    "copying": lambda: (Copying(), steps()[:, 0], classes()),
    "matrix exponential": lambda: (
        nn.Sequential(orthogonal(nn.Linear(WIDTH, WIDTH)), nn.Linear(WIDTH, CLASSES)),
        steps()[:, 0],
        classes(),
    ),
    "replicated": lambda: (
        Pooled(nn.Conv3d(2, 3, 2, padding=1, padding_mode="replicate"), nn.AdaptiveAvgPool3d(2), outputs=3),
        images(2, 3, 3, 3),
        classes(),
    ),
    "frozen part": lambda: (frozen(Twice(), "same"), steps(), classes()),
}

WITH_LOSS = {
    "tied decoder": lambda: (Tied(), tokens(), tokens(), language),
    "U-Net": lambda: (UNet(), images(), images(1), mean_of),
    "dict": lambda: (Structured("dict"), steps()[:, 0], classes(), of("scores")),
    "named tuple": lambda: (Structured("pair"), steps()[:, 0], classes(), of("scores")),
    "dataclass": lambda: (Structured("class"), steps()[:, 0], classes(), of("scores")),
    "several targets": lambda: (
        nn.Linear(WIDTH, 4),
        steps()[:, 0],
        {"class": classes() % 2, "number": torch.randn(ROWS, dtype=torch.float64)},
        lambda out, t: (
            cross_entropy(out[:, :2], t["class"]) + F.huber_loss(out[:, 3], t["number"], reduction="none")
        ),
    ),
    "weighted loss": lambda: (
        nn.Linear(WIDTH, CLASSES),
        steps()[:, 0],
        classes(),
        lambda out, t: F.cross_entropy(
            out,
            t,
            weight=torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64),
            reduction="none",
            label_smoothing=0.1,
        ),
    ),
    "several labels": lambda: (
        nn.Linear(WIDTH, 4),
        steps()[:, 0],
        torch.randint(0, 2, (ROWS, 4)).double(),
        lambda out, t: F.binary_cross_entropy_with_logits(out, t, reduction="none").mean(1),
    ),
    "spoken words": lambda: (
        nn.Sequential(nn.Linear(WIDTH, 4), nn.LogSoftmax(-1)),
        torch.randn(ROWS, 7, WIDTH, dtype=torch.float64),
        {
            "words": torch.randint(1, 4, (ROWS, 3)),
            "steps": torch.tensor([7, 6, 7, 5, 4]),
            "said": torch.tensor([3, 2, 0, 1, 2]),
        },
        lambda out, t: F.ctc_loss(
            out.transpose(0, 1), t["words"], t["steps"], t["said"], reduction="none", zero_infinity=True
        ),
    ),
    "words of one length": lambda: (
        nn.Sequential(nn.Linear(WIDTH, 4), nn.LogSoftmax(-1)),
        torch.randn(ROWS, 7, WIDTH, dtype=torch.float64),
        torch.randint(1, 4, (ROWS, 3)),
        lambda out, t: F.ctc_loss(
            out.transpose(0, 1), t, [out.shape[1]] * len(out), [t.shape[1]] * len(t), reduction="none"
        ),
    ),
    "distribution": lambda: (
        nn.Linear(WIDTH, 1),
        steps()[:, 0],
        torch.randn(ROWS, dtype=torch.float64),
        lambda out, t: -torch.distributions.Normal(out[:, 0], out[:, 0].exp()).log_prob(t),
    ),
    "ignored targets": lambda: (
        nn.Linear(WIDTH, CLASSES),
        steps(),
        torch.tensor([[0, 1, -100, 2]] * ROWS),
        language,
    ),
}


def exact(model, inputs, targets, loss, loop, distance, *, units=None, tolerance=1e-12):
    """Plain sums in float64, and clipped ones, whose coefficients are rounded down by 2⁻²²."""
    row = (
        torch.utils._pytree.tree_map_only(torch.Tensor, lambda leaf: leaf[:1], each)
        for each in (inputs, targets)
    )
    engine = Engine(model, loss, tuple(row))
    for norm, most in ((math.inf, tolerance), (0.5, 1e-6)):
        ours = engine.clipped(inputs, targets, Flat(norm=norm), units=units)
        assert bool(ours.finite.all())
        assert distance(ours.sums, loop(model, loss, inputs, targets, norm, units)) < most
    return engine


@pytest.mark.keeps_out("A gradient with its channels last that a kernel of the comparison takes for contiguous")
@pytest.mark.keeps_out(
    "A copy into fresh memory that is traced as a view of its source, which a later write then changes"
)
@pytest.mark.parametrize("name", PLAIN)
def test_layers(name, clipped_by_loop, distance):
    torch.manual_seed(0)
    model, inputs, targets = PLAIN[name]()
    exact(model.double(), inputs, targets, cross_entropy, clipped_by_loop, distance)


@pytest.mark.parametrize("name", WITH_LOSS)
def test_losses(name, clipped_by_loop, distance):
    torch.manual_seed(0)
    model, inputs, targets, loss = WITH_LOSS[name]()
    exact(model.double(), inputs, targets, loss, clipped_by_loop, distance)


@pytest.mark.parametrize(
    "name", ["CNN", "LSTM", "encoder", "embedding", "bag of means", "twice", "weight norm"]
)
def test_persons_with_several_rows(name, clipped_by_loop, distance):
    torch.manual_seed(0)
    model, inputs, targets = PLAIN[name]()
    units = torch.tensor([3, 1, 3, 3, 0])
    exact(model.double(), inputs, targets, cross_entropy, clipped_by_loop, distance, units=units)


@pytest.mark.parametrize("name", ["CNN", "LSTM", "encoder", "embedding", "twice"])
def test_single_precision(name, clipped_by_loop, distance):
    torch.manual_seed(0)
    model, inputs, targets = PLAIN[name]()
    single = inputs.float() if inputs.is_floating_point() else inputs
    exact(model.float(), single, targets, cross_entropy, clipped_by_loop, distance, tolerance=1e-6)


# Models of transformers and peft

TINY = {
    "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12,
    "vocab_size": 11, "max_position_embeddings": 8, "pad_token_id": 0,
}  # fmt: skip


def pretrained(name):
    hf = pytest.importorskip("transformers")
    if name == "BERT":
        return hf.BertForSequenceClassification(hf.BertConfig(**TINY, num_labels=CLASSES)), "query|value"
    if name == "GPT-2":
        config = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8, "vocab_size": 11}
        return hf.GPT2LMHeadModel(
            hf.GPT2Config(**config, pad_token_id=0, bos_token_id=1, eos_token_id=2)
        ), "c_attn"
    if name == "Llama":
        return hf.LlamaForCausalLM(hf.LlamaConfig(**TINY, num_key_value_heads=1)), "q_proj|v_proj"
    if name == "T5":
        config = {"vocab_size": 11, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2}
        return hf.T5ForConditionalGeneration(hf.T5Config(**config, decoder_start_token_id=0)), "q|v"
    config = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    config |= {"image_size": 8, "patch_size": 4, "num_labels": CLASSES}
    return hf.ViTForImageClassification(hf.ViTConfig(**config)), "query|value|q_proj|v_proj"


@pytest.mark.parametrize("adapted", [False, True], ids=["whole", "LoRA"])
@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama", "T5", "ViT"])
def test_transformers(name, adapted, clipped_by_loop, distance):
    torch.manual_seed(0)
    model, projections = pretrained(name)
    if adapted:
        peft = pytest.importorskip("peft")
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=f".*\\.({projections})$"))
    words = torch.randint(3, 11, (ROWS, 6))
    inputs = {"input_ids": words, "attention_mask": (torch.arange(6) < torch.randint(3, 7, (ROWS, 1))).long()}
    if name == "T5":
        inputs["decoder_input_ids"] = words.roll(1, 1)
    if name == "ViT":
        inputs = {"pixel_values": images(3)}
    targets = words if name in ("GPT-2", "Llama", "T5") else classes()
    model = model.double().eval()
    exact(model, inputs, targets, default_loss(model), clipped_by_loop, distance)


# Rows that do not count

FINITE = [
    *("MLP", "CNN", "LSTM", "GRU, steps first", "encoder", "twice", "weight norm", "instance norm", "experts"),
    *("layer and RMS norm", "transposed", "one dimension", "pools", "einsum", "spoken words"),
]
INDEXED = ["embedding", "bag of sums", "bag of means", "bag of maxima", "indexing", "tied decoder"]


@cache
def _made(name):
    torch.manual_seed(0)
    found = (PLAIN | WITH_LOSS)[name]()
    model, inputs, targets, loss = (*found, cross_entropy)[:4]
    single = inputs.float() if inputs.is_floating_point() else inputs
    row = torch.utils._pytree.tree_map(lambda leaf: leaf[:1], (single, targets))
    return Engine(model.float(), loss, row), single, targets


def made(name):
    engine, inputs, targets = _made(name)
    return engine, torch.utils._pytree.tree_map(torch.clone, inputs), targets


def same_bits(one, other):
    return all(torch.equal(one.sums[name], other.sums[name]) for name in one.sums)


def adds_nothing(engine, clean, spoiled, targets, row):
    """Zero for the row; for the others the bits that they have beside any other row at that place."""
    result = engine.clipped(spoiled, targets, Flat(norm=0.1))
    others = torch.arange(ROWS) != row
    assert result.finite.tolist() == others.tolist()
    assert result.coefficients[row].tolist() == [0.0]
    assert all(bool(value.isfinite().all()) for value in result.sums.values())
    plain = engine.clipped(clean, targets, Flat(norm=0.1))
    assert torch.equal(result.norms[others], plain.norms[others])
    assert torch.equal(result.losses[others], plain.losses[others])
    return result


@pytest.mark.parametrize("name", FINITE)
def test_rows_that_are_not_finite(name):
    engine, inputs, targets = made(name)
    found = []
    for bad in (math.nan, math.inf, -math.inf):
        spoiled = inputs.clone()
        spoiled[2].view(-1)[3] = bad
        found.append(adds_nothing(engine, inputs, spoiled, targets, 2))
    spoiled[2] = math.nan
    found.append(adds_nothing(engine, inputs, spoiled, targets, 2))
    assert all(same_bits(found[0], other) for other in found[1:])


def test_a_row_at_the_end_is_as_good_as_none():
    engine, inputs, targets = made("CNN")
    spoiled = inputs.clone()
    spoiled[-1] = math.nan
    result = engine.clipped(spoiled, targets, Flat(norm=0.1))
    assert same_bits(result, engine.clipped(inputs[:-1], targets[:-1], Flat(norm=0.1)))


def test_negative_zeros_count():
    engine, inputs, targets = made("MLP")
    inputs[1] = -0.0
    assert bool(engine.clipped(inputs, targets, Flat(norm=0.1)).finite.all())


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("bad", [-8, 7, 2**40, -(2**63)])
def test_indices_out_of_range(name, bad):
    engine, inputs, targets = made(name)
    spoiled = inputs.clone()
    spoiled[1, 2] = bad
    adds_nothing(engine, inputs, spoiled, targets, 1)


@pytest.mark.parametrize("bad", [-1, 3, 2**62])
def test_targets_out_of_range(bad):
    engine, inputs, targets = made("MLP")
    spoiled = targets.clone()
    spoiled[0] = bad
    result = engine.clipped(inputs, spoiled, Flat(norm=0.1))
    assert result.finite.tolist() == [False, True, True, True, True]


class Dividing(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.way, self.head = way, nn.Linear(2, 3)

    def forward(self, inputs):
        numbers = inputs.long()
        if self.way == "remainder":
            share = numbers % numbers.flip(1)
        else:
            share = torch.div(numbers, numbers.flip(1), rounding_mode="trunc")
        return self.head(share.float())


@pytest.mark.parametrize("way", ["remainder", "quotient"])
def test_whole_divisors_that_are_zero(way):
    inputs, targets = torch.tensor([[5.0, 2.0], [7.0, 0.0], [-4.0, 3.0]]), torch.tensor([0, 1, 2])
    engine = Engine(Dividing(way), cross_entropy, (inputs[:1], targets[:1]))
    assert engine.clipped(inputs, targets, Flat(norm=1.0)).finite.tolist() == [True, False, True]
    least = torch.tensor([[-1.0, -(2.0**63)], [4.0, 2.0]])  # whose negative is no number of 64 bits
    assert engine.clipped(least, targets[:2], Flat(norm=1.0)).finite.tolist()[1]


class Solving(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.way, self.head = way, nn.Linear(4, 3)

    def forward(self, inputs):
        if self.way == "cholesky":
            return self.head(torch.linalg.cholesky(inputs).flatten(1))
        if self.way == "inverse":
            return self.head(torch.linalg.inv(inputs).flatten(1))
        return self.head(torch.linalg.solve(inputs, inputs + 1).flatten(1))


@pytest.mark.parametrize("way", ["cholesky", "inverse", "solve"])
def test_matrices_without_a_result(way, clipped_by_loop, distance):
    torch.manual_seed(0)
    inputs = torch.randn(3, 2, 2, dtype=torch.float64)
    inputs = inputs @ inputs.mT + 0.1 * torch.eye(2)
    targets, model = torch.tensor([0, 1, 2]), Solving(way).double()
    engine = Engine(model, cross_entropy, (inputs[:1], targets[:1]))
    plain = engine.clipped(inputs, targets, Flat(norm=math.inf))
    assert distance(plain.sums, clipped_by_loop(model, cross_entropy, inputs, targets, math.inf)) < 1e-10
    inputs[1] = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    result = engine.clipped(inputs, targets, Flat(norm=1.0))
    assert result.finite.tolist() == [True, False, True]
    assert torch.equal(result.norms[[0, 2]], plain.norms[[0, 2]])


def test_a_person_with_one_bad_row_adds_nothing():
    engine, inputs, targets = made("CNN")
    inputs[3] = math.nan
    result = engine.clipped(inputs, targets, Flat(norm=0.1), units=torch.tensor([4, 2, 2, 7, 7]))
    assert result.finite.tolist() == [True, True, False]


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(6, 400), nn.Linear(400, 3)

    def forward(self, inputs):
        kept = F.dropout(self.first(inputs), 0.25, self.training)
        return self.head(kept + 0.1 * torch.randn_like(kept))


def test_draws_are_inputs_of_each_row(clipped_by_loop, distance):
    torch.manual_seed(0)
    model, inputs, targets = Dropped(), torch.randn(1, 6).expand(ROWS, -1), torch.zeros(ROWS, dtype=torch.long)
    engine = Engine(model, cross_entropy, (inputs[:1], targets[:1]))
    assert [draw.kind for draw in engine.row.draws] == ["uniform", "normal"]
    first, again, other = (
        engine.clipped(inputs, targets, Flat(norm=1.0), sampler=SecretStream(test_seed=seed))
        for seed in (1, 1, 2)
    )
    assert same_bits(first, again)
    assert not same_bits(first, other)
    assert len(set(first.losses.tolist())) == ROWS  # alike rows draw by themselves
    secret = [engine.clipped(inputs, targets, Flat(norm=1.0)) for _ in range(2)]
    torch.manual_seed(0)  # which decides nothing
    assert not same_bits(*secret)


@pytest.mark.parametrize("rate", [0.25, 0.5])
def test_dropout_keeps_as_many_as_it_says(rate):
    """Of 200,000 units: five standard deviations are less than .6%."""
    model = nn.Sequential(nn.Dropout(rate), nn.Linear(1000, 1))
    engine = Engine(model, lambda out, _: out[:, 0], (torch.ones(1, 1000), torch.zeros(1)))
    result = engine.clipped(torch.ones(200, 1000), torch.zeros(200), Flat(norm=math.inf))
    share = float(result.sums["1.weight"].sum()) * (1 - rate) / 200_000
    assert abs(share - (1 - rate)) < 0.006


def test_a_repeated_draw_is_one_input():
    """A layer that runs again in the backward pass drops what it dropped."""

    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.part, self.head = nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.5)), nn.Linear(9, 3)

        def forward(self, inputs):
            return self.head(checkpoint(self.part, inputs, use_reentrant=False).tanh())

    engine = Engine(Again(), cross_entropy, (torch.randn(1, 6), torch.zeros(1, dtype=torch.long)))
    assert len(engine.row.draws) == 1
