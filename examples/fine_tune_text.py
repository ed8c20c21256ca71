"""Fine-tune a text classifier on private sentences with LoRA: transformers and peft as they are.

The sentences are made here. Public ones, about weather and food, teach a small BERT what words mean; private
ones, about a hospital, are what it is fine-tuned on, at (ε, δ), charged to a ledger.

    python examples/fine_tune_text.py
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

import sfumato
from sfumato import Budget, Ledger
from sfumato.training import Optimization

PUBLIC = ["the weather", "the soup", "our train", "that film", "the hotel"]
PRIVATE = ["the nurse", "my doctor", "the ward", "the waiting room", "the surgeon"]
WORDS = {  # bad and good ones; those of the hospital are not among the public ones
    True: (["bad", "awful", "slow", "dull"], ["good", "great", "quick", "lovely"]),
    False: (["careless", "painful", "rushed", "grim"], ["gentle", "painless", "thorough", "kind"]),
}
FORMS = ["{thing} was {word}", "i found {thing} {word}", "{thing} seemed {word} to us", "how {word} {thing} is"]
LENGTH = 8


def sentences(count: int, *, public: bool, seed: int) -> list[tuple[str, int]]:
    """Sentences and whether they praise."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        label, thing = draw.randrange(2), draw.choice(PUBLIC if public else PRIVATE)
        word = draw.choice(WORDS[public][label])
        found.append((draw.choice(FORMS).format(thing=thing, word=word), label))
    return found


class Tokenizer:
    """A number for each word of the public vocabulary; a word that is not in it is unknown."""

    def __init__(self) -> None:
        adjectives = [word for pair in WORDS.values() for words in pair for word in words]
        words = sorted({word for text in [*PUBLIC, *PRIVATE, *FORMS, *adjectives] for word in text.split()})
        self.numbers = {word: number for number, word in enumerate(words, start=2)}

    def __call__(self, text: str) -> dict[str, list[int]]:
        tokens = [self.numbers.get(word, 1) for word in text.split()][:LENGTH]
        padding = [0] * (LENGTH - len(tokens))
        return {"input_ids": tokens + padding, "attention_mask": [1] * len(tokens) + padding}


def items(tokenizer: Tokenizer, texts: list[tuple[str, int]]) -> list[dict[str, object]]:
    """A map-style data set of dicts, as the datasets library has them."""
    return [{**tokenizer(text), "labels": label} for text, label in texts]


def columns(rows: list[dict[str, object]]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}


def pretrained(tokenizer: Tokenizer, steps: int) -> BertForSequenceClassification:
    """A small BERT that learned from public sentences."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer.numbers) + 2, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=16, num_labels=2,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        batch = columns(items(tokenizer, sentences(64, public=True, seed=step)))
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    return model.eval()


def accuracy(model: torch.nn.Module, rows: list[dict[str, object]]) -> float:
    batch = columns(rows)
    labels = batch.pop("labels")
    with torch.inference_mode():
        return float((model.eval()(**batch).logits.argmax(1) == labels).float().mean())


def main(*, people: int, epsilon: float, steps: int, epochs: int, ledger: Path) -> dict[str, float]:
    tokenizer = Tokenizer()
    base = pretrained(tokenizer, steps)
    private = items(tokenizer, sentences(people, public=False, seed=-1))
    test = items(tokenizer, sentences(400, public=False, seed=-2))  # public here, so that we may look
    before = accuracy(base, test)
    model = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", modules_to_save=["classifier"]))
    with Ledger.open(ledger, budget=Budget(epsilon=epsilon, delta=1e-5)) as book:
        result = sfumato.train(
            model,
            private,
            epsilon=epsilon,
            delta=1e-5,
            public_size=people,
            expected_batch=people // 8,
            epochs=epochs,
            optimization=Optimization(optimizer="adamw", learning_rate=2e-2),
            ledger=book,
        )
    return {"before": before, "after": accuracy(model, test), "epsilon": result.epsilon}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--people", type=int, default=1500, help="private sentences, one of each person")
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=100, help="of training on public sentences")
    parser.add_argument("--epochs", type=int, default=10, help="of training on private ones")
    parser.add_argument("--ledger", type=Path, default=Path("hospital.db"))
    for name, value in main(**vars(parser.parse_args())).items():
        print(f"{name:8} {value:.4g}")
