"""An entry for the public registry of DP deployments, filled from what the ledger knows.

Names and levels are those of the registry's own template (opendp/deployments-registry-data; Nanayakkara, Ghazi
& Vadhan 2025, arXiv 2509.13509). What no ledger can know is left as a question, for a person to answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sfumato.governance.statements.statement import Statement

ASK = "PLEASE FILL IN: "


def registry_entry(statement: Statement) -> dict[str, Any]:
    """The entry as the registry's YAML files hold it.

    Args:
        statement: What is known.

    Returns:
        The entry; fields that only a person can answer begin with `ASK`.

    >>> import tempfile; from sfumato.ledger import Budget, Ledger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Ledger.open(f"{folder}/l.db", budget=Budget(epsilon=1)) as ledger:
    ...         registry_entry(Statement.of(ledger))["deployment"]["dp_variant"]["variant_name"]
    'Pure DP'
    """
    book = statement.data
    return {
        "url_slug": ASK + "a short name in lower case",
        "deployment": {
            "basic": _basic(book),
            "dp_variant": {
                "variant_name": "Pure DP" if book["delta"] == 0 else "Approximate DP",
                "data_domain": f"neighbours by {book['relation']}",
                "unprotected_quantities": "what the policy declares: columns, bounds, categories, size",
            },
            "privacy_loss": _loss(book),
            "deployment_model": _model(book),
            "implementation": _implementation(book),
            "administrative": {"status": "Draft", "registry_authors": [ASK + "your name"], "tier": 3},
        },
    }


def _basic(book: Mapping[str, Any]) -> dict[str, Any]:
    released = "; ".join(charge["purpose"] for charge in book["charges"])[:2000]
    return {
        "name": book["dataset"] or ASK + "what the data are",
        "data_curators": [
            {
                "data_curator_name": book["holder"] or ASK + "who holds the data",
                "data_curator_type": ASK + "Government, Industry, Academia or Nonprofit",
            }
        ],
        "description": released or ASK + "what is released",
        "intended_use": ASK + "what the releases are for",
        "data_product_type": ASK + "such as Summary statistics, Machine learning model or Synthetic data",
        "data_product_region": ASK + "where the people live",
        "data_product_sector": ASK + "such as Health or Technology",
        "publication_date": str(book["made"])[:10],
    }


def _loss(book: Mapping[str, Any]) -> dict[str, Any]:
    """The budget; where it was broken, what is owed."""
    unit, what = book["unit"], book["exceeded_by"]
    epsilon = book["epsilon"] if what is None else book["epsilon_spent"]
    if what is None:
        details = f"a lifetime budget; ε = {book['epsilon_spent']:.6g} is spent"
    else:
        details = (
            f"a lifetime budget of ε = {book['epsilon']:g}, broken by a release outside the ledger: {what}"
        )
    return {
        "privacy_unit": unit,
        "privacy_unit_details": f"each {unit}, all of its rows up to the declared bound",
        "privacy_parameters": {"epsilon": epsilon, **({"delta": book["delta"]} if book["delta"] else {})},
        "privacy_parameters_details": details,
    }


def _model(book: Mapping[str, Any]) -> dict[str, Any]:
    count = len(book["charges"])
    return {
        "model_name": "Central",
        "model_name_details": "noise is added by the holder of the data",
        "trust_assumptions": "the holder's machine and the people who may use it",
        "actors": ASK + "who may ask, who approves",
        "release_type": "Many releases" if count > 1 else "One-time release",
        "release_type_details": f"{count} charges so far",
        "data_source_type": ASK + "Static or Dynamic",
        "access_type": ASK + "Non-interactive or Interactive",
    }


def _implementation(book: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "preprocessing_and_hyperparameter_tuning": ASK + "what was tuned on what; Sfumato charges `tune`",
        "mechanisms": ", ".join(book["mechanisms"]) or "none yet",
        "composition": "exact (privacy loss distributions) for a plan fixed in advance, a Rényi filter for all "
        "later charges",
        "post_processing": ASK + "such as rounding, or HAVING over an answer",
        "justification": ASK + "why this ε",
        "utility": ASK + "what accuracy was needed, and reached",
        "additional_information": f"{book['software']}; head of the ledger {book['head']['hash']}",
    }
