"""`sfumato reproduce membership`: who was among the training rows."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from sfumato import show


def membership(out: show.Out = Path("out/membership"), json: show.Json = False) -> None:
    """Run membership inference against plain and private networks.

    Example: sfumato reproduce membership
    """
    from sfumato_lab.reproduce import membership as recipe

    with show.errors.status("training and attacking networks"):
        found = recipe.run(out)
    if json:
        show.emit_json(found)
        return
    table = Table(title="Membership attacks, MNIST", title_justify="left")
    columns = ("network", "attack", "AUC", "TPR at 0.1% FPR", "precision", "recall")
    for column in columns:
        table.add_column(column, justify="left" if column in columns[:2] else "right")
    measures = ("auc", "tpr_at_fpr_0.001", "precision_at_median", "recall_at_median")
    for network, attacks in found["attacks"].items():
        for attack, scores in attacks.items():
            if isinstance(scores, dict) and "auc" in scores:
                table.add_row(network, attack, *(f"{scores[name]['value']:.3f}" for name in measures))
    show.console.print(table)
    show.console.print(f"Figures: {out}")
