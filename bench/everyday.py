"""Everyday models, unmodified: what a private step costs beside a plain one.

    python bench/everyday.py [--rows 16] [--length 32] [--only T5 …] [--ways]

Random weights from a config: width 64, two layers, tokens of a vocabulary of 1,000 (or images of 32 × 32),
each whole and with LoRA of rank 4 where it has projections. All rows take part in each step: forward,
backward, noise, optimizer. Plain and private steps take turns in one process, on one thread, by processor
time. Printed are the ratios of the least and median times, and what the first step costs, once: it tries the
model on public rows. Needs transformers and peft.

`--ways` measures, instead, whole private steps of a small network whose rows and precision come in several
ways, and the training on a CSV file by its policy.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import torch
import transformers as hf
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sfumato.learn.table import TableTraining
from sfumato.policy import Policy, load_policy
from sfumato.training import PrivateTrainer, TrainingPlan, cross_entropy, default_loss

VOCABULARY, LENGTH, CLASSES, WIDTH = 1000, 32, 3, 64
ROWS = 4096  # of the ways to bring them
USUAL = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 2 * WIDTH,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
GPT = {"n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY}
PAD = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


class Attentive(nn.Module):
    """Tokens, torch's own attention, a class."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.mix, self.head = nn.MultiheadAttention(WIDTH, 4, batch_first=True), nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        seen = self.tokens(input_ids)
        return self.head(self.mix(seen, seen, seen, need_weights=False)[0].mean(1))


class Recurrent(nn.Module):
    """Tokens, a recurrent layer, a class."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.cells, self.head = kind(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(self.tokens(input_ids))[0][:, -1])


# name: how it is made, and the projections that adapters go on
MODELS: dict[str, tuple[Callable[[], nn.Module], str | None]] = {
    "BERT": (
        lambda: hf.BertForSequenceClassification(hf.BertConfig(**USUAL, num_labels=CLASSES)),
        "query|value",
    ),
    "DistilBERT": (
        lambda: hf.DistilBertForSequenceClassification(
            hf.DistilBertConfig(
                vocab_size=VOCABULARY, dim=WIDTH, n_layers=2, n_heads=4, hidden_dim=2 * WIDTH,
                max_position_embeddings=64, num_labels=CLASSES,
            )
        ),
        "q_lin|v_lin",
    ),
    "RoBERTa": (
        lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**USUAL, num_labels=CLASSES)),
        "query|value",
    ),
    "GPT-2": (lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT, **PAD)), "c_attn"),
    "Llama": (
        lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**USUAL, num_key_value_heads=2)),
        "q_proj|v_proj",
    ),
    "T5": (
        lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(
                vocab_size=VOCABULARY, d_model=WIDTH, d_kv=16, d_ff=2 * WIDTH, num_layers=2, num_heads=4,
                decoder_start_token_id=0,
            )
        ),
        "q|v",
    ),
    "ViT": (
        lambda: hf.ViTForImageClassification(
            hf.ViTConfig(
                hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, intermediate_size=2 * WIDTH,
                image_size=32, patch_size=4, num_labels=CLASSES,
            )
        ),
        "query|value|q_proj|v_proj",
    ),
    "LSTM": (lambda: Recurrent(nn.LSTM), None),
    "GRU": (lambda: Recurrent(nn.GRU), None),
    "MultiheadAttention": (Attentive, None),
}  # fmt: skip


def built(name: str, *, adapters: bool) -> nn.Module:
    make, parts = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()  # without dropout, so that both do the same
    if not adapters:
        return model
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=f".*\\.({parts})$")).eval()


def rows_for(name: str, rows: int, length: int = LENGTH) -> tuple[dict[str, Any], torch.Tensor]:
    classes = torch.randint(0, CLASSES, (rows,))
    if name == "ViT":
        return {"pixel_values": torch.randn(rows, 3, 32, 32)}, classes
    tokens = torch.randint(3, VOCABULARY, (rows, length))
    inputs = {"input_ids": tokens}
    if MODELS[name][1] is None:
        return inputs, classes
    inputs["attention_mask"] = torch.ones_like(tokens)
    if name == "T5":
        inputs["decoder_input_ids"] = tokens.roll(1, 1)
    return inputs, tokens if name in ("GPT-2", "Llama", "T5") else classes


def measured(
    name: str, rows: int, length: int, *, adapters: bool, turns: int
) -> tuple[float, list[float], list[float]]:
    """Seconds of the first private step, and of plain and of private steps in turns."""
    model = built(name, adapters=adapters)
    data, loss_fn = rows_for(name, rows, length), default_loss(model)
    inputs, targets = data
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    plan = TrainingPlan(sample_rate=1.0, expected_batch=rows, steps=turns + 1, noise_multiplier=1.0)
    trainer = PrivateTrainer(model, optimizer, plan)

    def plain() -> None:
        optimizer.zero_grad()
        loss_fn(model(**inputs), targets).mean().backward()
        optimizer.step()

    plain()
    pairs = [
        (timed(plain), timed(lambda batch=batch: trainer.step(batch, loss_fn)))
        for batch in trainer.batches(data)
    ]
    return pairs[0][1], [pair[0] for pair in pairs[1:]], [pair[1] for pair in pairs[1:]]


def stepped(prepare: Callable[[], tuple[nn.Module, Any]], steps: int, *, autocast: bool = False) -> list[float]:
    """Seconds of each private step of 256 rows, but of the first, which tries the model."""
    model, data = prepare()
    plan = TrainingPlan(sample_rate=256 / ROWS, expected_batch=256, steps=steps, noise_multiplier=1.0)
    trainer = PrivateTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)
    found = []
    with torch.autocast("cpu", enabled=autocast):
        start = time.process_time()
        for batch in trainer.batches(data):  # the rows are read in the step
            trainer.step(batch, cross_entropy)
            found.append(time.process_time() - start)
            start = time.process_time()
    return found[1:]


def small(compiled: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, CLASSES))
    return torch.compile(model) if compiled else model


def show_ways(steps: int) -> None:
    rows = TensorDataset(torch.randn(ROWS, WIDTH), torch.randint(0, CLASSES, (ROWS,)))
    items = list(zip(*rows.tensors, strict=True))  # read one by one
    ways: dict[str, Callable[[], list[float]]] = {
        "tensors": lambda: stepped(lambda: (small(), rows.tensors), steps),
        "DataLoader of tensors": lambda: stepped(lambda: (small(), DataLoader(rows, batch_size=32)), steps),
        "DataLoader of items": lambda: stepped(lambda: (small(), DataLoader(items, batch_size=32)), steps),
        "autocast around the step": lambda: stepped(lambda: (small(), rows.tensors), steps, autocast=True),
        "torch.compile(model)": lambda: stepped(lambda: (small(compiled=True), rows.tensors), steps),
    }
    print(f"\n{ROWS} rows, 256 a step, 17,411 weights\n| way | CPU ms a step, least | median |\n|---|---|---|")
    for name, run in ways.items():
        found = run()
        print(f"| {name} | {1e3 * min(found):.1f} | {1e3 * statistics.median(found):.1f} |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        policy = table_in(Path(folder))
        for model in ("linear", "boosted", "mlp"):
            ready = TableTraining.prepare(policy, target="ill", epsilon=1, delta=1e-6, model=model)
            print(
                f"| CSV of 8,000 people, {model}: the whole run, CPU s | {timed(ready.train):.1f} | |",
                flush=True,
            )


def table_in(folder: Path) -> Policy:
    """A CSV file of 8,000 people with two columns and a class, and its policy."""
    age = torch.randint(18, 90, (8000,))
    ill = (age - 60 + 8 * torch.randn(8000) > 0).long()
    pairs = zip(age.tolist(), ill.tolist(), strict=True)
    (folder / "people.csv").write_text("age,ill\n" + "".join(f"{a},{i}\n" for a, i in pairs))
    (folder / "people.toml").write_text(
        '[table]\nname = "people"\nsource = "people.csv"\npublic_size = 8000\n'
        '[budget]\nepsilon = 3.0\ndelta = 1e-6\nledger = "people.db"\n'
        '[columns.age]\ntype = "integer"\nlower = 0\nupper = 120\n'
        '[columns.ill]\ntype = "integer"\ncategories = [0, 1]\n'
    )
    return load_policy(folder / "people.toml")


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens of a row, up to 64")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--only", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--ways", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(
        f"torch {torch.__version__}, transformers {hf.__version__}, peft {peft.__version__}; {asked.rows} rows"
    )
    if asked.ways:
        show_ways(30)
        return
    print("| model | | plain ms | private / plain, least | median | first step s |\n|---|---|---|---|---|---|")
    for name in asked.only:
        for adapters in (False, True) if MODELS[name][1] else (False,):
            first, plain, private = measured(
                name, asked.rows, asked.length, adapters=adapters, turns=asked.turns
            )
            least, middle = min(private) / min(plain), statistics.median(private) / statistics.median(plain)
            how = "LoRA" if adapters else "whole"
            print(
                f"| {name} | {how} | {1e3 * min(plain):.1f} | {least:.2f} | {middle:.2f} | {first:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
