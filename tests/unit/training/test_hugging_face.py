"""Stock models of transformers, alone and with adapters of peft, against a loop over single rows."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from sfumato import PrivateTrainer, TrainingPlan
from sfumato.errors import InvalidInput
from sfumato.training import clipped_gradient_sum, train
from sfumato.training.data import source_of
from sfumato.training.hugging_face import default_loss

transformers = pytest.importorskip("transformers", reason="install it with: pip install 'sfumato[dev]'")
peft = pytest.importorskip("peft", reason="install it with: pip install 'sfumato[dev]'")

VOCABULARY, LENGTH, ROWS, CLASSES = 40, 6, 5, 3
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 16,
}
GPT = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16, "bos_token_id": 0}
GPT |= {"eos_token_id": 0, "pad_token_id": 0}
LLAMA = {**SMALL, "num_key_value_heads": 2, "pad_token_id": 0}
T = transformers
MODELS = {
    "BERT": (lambda: T.BertForSequenceClassification(T.BertConfig(**SMALL, num_labels=CLASSES)), "query"),
    "BERT, masked": (lambda: T.BertForMaskedLM(T.BertConfig(**SMALL)), "query"),
    "DistilBERT": (
        lambda: T.DistilBertForSequenceClassification(
            T.DistilBertConfig(
                vocab_size=VOCABULARY, dim=16, n_layers=1, n_heads=2, hidden_dim=24,
                max_position_embeddings=16, num_labels=CLASSES,
            )
        ),
        "q_lin",
    ),
    "RoBERTa": (
        lambda: T.RobertaForSequenceClassification(
            T.RobertaConfig(**{**SMALL, "max_position_embeddings": 18}, num_labels=CLASSES)
        ),
        "query",
    ),
    "GPT-2": (lambda: T.GPT2LMHeadModel(T.GPT2Config(**GPT)), "c_attn"),
    "GPT-2, classes": (
        lambda: T.GPT2ForSequenceClassification(T.GPT2Config(**GPT, num_labels=CLASSES)),
        "c_attn",
    ),
    "T5": (
        lambda: T.T5ForConditionalGeneration(
            T.T5Config(
                vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2,
                decoder_start_token_id=0, dropout_rate=0.0,
            )
        ),
        "q",
    ),
    "ViT": (
        lambda: T.ViTForImageClassification(
            T.ViTConfig(
                hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
                image_size=8, patch_size=4, num_labels=CLASSES,
            )
        ),
        "q_proj|query",
    ),
    "Llama": (lambda: T.LlamaForCausalLM(T.LlamaConfig(**LLAMA)), "q_proj"),
    "Llama, classes": (
        lambda: T.LlamaForSequenceClassification(T.LlamaConfig(**LLAMA, num_labels=CLASSES)),
        "q_proj",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def built(name, adapters=False):
    make, part = MODELS[name]
    torch.manual_seed(3)
    model = make().eval()
    if not adapters:
        return model
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=f".*({part})")).eval()


def rows_for(name, model):
    """Inputs as a dict, rows padded differently, and labels as transformers has them."""
    torch.manual_seed(4)
    if name == "ViT":
        return {"pixel_values": torch.randn(ROWS, 3, 8, 8)}, torch.randint(0, CLASSES, (ROWS,))
    tokens = torch.randint(2, VOCABULARY, (ROWS, LENGTH))
    mask = torch.arange(LENGTH) < torch.tensor([6, 4, 5, 6, 3])[:, None]
    inputs = {"input_ids": tokens.where(mask, 0), "attention_mask": mask.long()}
    if "classes" in name or name in ("BERT", "DistilBERT", "RoBERTa"):
        return inputs, torch.randint(0, CLASSES, (ROWS,))
    labels = tokens.where(mask, -100)
    if name == "T5":
        inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=labels)
    return inputs, labels


def by_loop(model, loss_fn, inputs, targets, clip_norm):
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in named.items()}
    for row in range(ROWS):
        one = {name: value[row : row + 1] for name, value in inputs.items()}
        loss = loss_fn(model(**one), targets[row : row + 1]).sum()
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        gradients = {n: g.double() for n, g in zip(named, found, strict=True) if g is not None}
        norm = float(torch.cat([g.flatten() for g in gradients.values()]).norm())
        for name, gradient in gradients.items():
            total[name] += min(1.0, clip_norm / norm) * gradient
    return total


@pytest.mark.parametrize("adapters", [False, True], ids=["whole", "LoRA"])
@pytest.mark.parametrize("name", MODELS)
def test_clipped_sums_are_those_of_a_loop(name, adapters, distance):
    model = built(name, adapters)
    inputs, targets = rows_for(name, model)
    loss_fn = default_loss(model)
    expected = by_loop(model, loss_fn, inputs, targets, 0.05)
    found = clipped_gradient_sum(model, loss_fn, inputs, targets, 0.05)
    assert distance(found, expected) < 1e-4


@pytest.mark.parametrize("name", ["BERT", "BERT, masked", "T5"])
def test_the_loss_of_one_row_is_the_models_own(name):
    model = built(name)
    inputs, targets = rows_for(name, model)
    losses = default_loss(model)(model(**inputs), targets)
    for row in range(ROWS):
        one = {key: value[row : row + 1] for key, value in inputs.items()}
        assert float(losses[row]) == pytest.approx(
            float(model(**one, labels=targets[row : row + 1]).loss), rel=1e-4
        )


def test_the_loss_of_the_next_token_is_the_models_own():
    model = built("GPT-2")
    inputs, targets = rows_for("GPT-2", model)
    losses = default_loss(model)(model(**inputs), targets)
    for row in range(ROWS):
        own = model(input_ids=inputs["input_ids"][row : row + 1], labels=targets[row : row + 1],
                    attention_mask=inputs["attention_mask"][row : row + 1]).loss  # fmt: skip
        assert float(losses[row]) == pytest.approx(float(own), rel=1e-4)


@pytest.mark.parametrize("name", ["BERT", "T5"])
def test_items_with_labels_inside_train(name):
    model = built(name)
    inputs, targets = rows_for(name, model)
    inputs.pop("decoder_input_ids", None)
    items = [{**{k: v[n] for k, v in inputs.items()}, "labels": targets[n]} for n in range(ROWS)] * 4
    public = {key: torch.zeros_like(value) for key, value in items[0].items()}
    for example in (None, public):
        result = train(
            built(name),
            items,
            epsilon=50.0,
            public_size=len(items),
            expected_batch=4,
            epochs=0.2,
            example=example,
        )
        assert result.epsilon <= 50.0
        read = any("first record" in caveat for caveat in result.certificate.caveats)
        assert read == (example is None)


def test_a_loader_pads_each_item_to_the_public_example():
    lengths = [2, 5, 3, 6] * 5
    items = [{"input_ids": list(range(1, n + 1)), "labels": n % CLASSES} for n in lengths]

    def collate(batch):
        longest = max(len(item["input_ids"]) for item in batch)
        padded = [item["input_ids"] + [0] * (longest - len(item["input_ids"])) for item in batch]
        mask = [[1] * len(item["input_ids"]) + [0] * (longest - len(item["input_ids"])) for item in batch]
        labels = torch.tensor([item["labels"] for item in batch])
        return {"input_ids": torch.tensor(padded), "attention_mask": torch.tensor(mask), "labels": labels}

    loader = torch.utils.data.DataLoader(items, batch_size=7, shuffle=True, collate_fn=collate)
    example = {"input_ids": [1] * 6, "labels": 0}
    with pytest.raises(InvalidInput, match="example"):
        source_of(loader)
    source = source_of(loader, example)
    inputs, targets, readable = source.take(np.arange(4))
    assert readable.all()
    assert inputs["attention_mask"].sum(1).tolist() == [2, 5, 3, 6]
    assert inputs["input_ids"].shape == (4, 6)
    assert targets.tolist() == [2, 2, 0, 0]
    plan = TrainingPlan.calibrated(
        epsilon=50.0, delta=1e-5, public_size=20, expected_batch=4, steps=2, unit="record"
    )
    model = built("BERT")
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)
    for batch in trainer.batches(loader, example=example):
        trainer.step(batch, default_loss(model))
    assert trainer.steps_done == 2


def test_an_item_longer_than_the_example_is_left_out_by_itself():
    def collate(batch):
        longest = max(len(item["input_ids"]) for item in batch)
        padded = [item["input_ids"] + [0] * (longest - len(item["input_ids"])) for item in batch]
        return torch.tensor(padded), torch.tensor([item["labels"] for item in batch])

    items = [{"input_ids": [5] * n, "labels": 1} for n in (3, 9, 4)]
    loader = torch.utils.data.DataLoader(items, collate_fn=collate, num_workers=0)
    _, _, readable = source_of(loader, {"input_ids": [1] * 4, "labels": 0}).take(np.arange(3))
    assert readable.tolist() == [True, False, True]


def test_texts_and_streams_are_refused_with_a_sentence():
    with pytest.raises(InvalidInput, match="got str; turn texts"):
        _ = source_of([{"text": "a secret", "labels": 1}] * 3).example
    with pytest.raises(InvalidInput, match="expected a field labels"):
        _ = source_of([{"input_ids": [1, 2]}] * 3).example
    with pytest.raises(InvalidInput, match="streams"):
        source_of(x for x in range(3))
