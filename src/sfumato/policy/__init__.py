"""Declare a table in public: the bounds and categories of its columns, its unit of privacy, its budget.

No part of a policy is derived from the data. A policy is a TOML file:

    [table]
    name = "people"                  # the name in queries
    source = "people.csv"            # .csv, .csv.gz, .parquet, parts/*.parquet or a .duckdb file, beside the
                                     # policy; a table's name in a database
    public_size = 10000              # optional: about how many rows, if that is public; `train` needs it
    version = "2026-05"              # optional: change it with the data; an answer to the same question about
                                     # the same version can be given again for nothing
    owner = "clinic"                 # optional: a role that is trusted with a table in PostgreSQL
    delimiter = ","                  # of a text file, as are the next three
    header = true                    # whether the first line holds the names of the columns
    fields = ["person", "age", "city"]   # the names in order; needed without a header
    missing = ["", "NA"]             # texts that mean a missing value; default [""]

    [unit]
    column = "person"                # whose privacy is kept; leave out if every row is one person
    rows = 5                         # most rows of one person that count
    groups = 2                       # most groups of a GROUP BY in which one person counts

    [budget]
    epsilon = 3.0
    delta = 1e-6
    ledger = "people.ledger.db"      # a file, or the address of a PostgreSQL ledger
    dataset = "people-2026"          # optional: the id of the data set, which the ledger must name too
    four_eyes = true                 # optional: at the desk, two officers approve spending

    [columns.age]
    type = "integer"                 # integer, real, text, boolean or date
    lower = 0
    upper = 120

    [columns.city]
    type = "text"
    categories = ["Delft", "Utrecht"]

    [columns.born]
    type = "date"
    lower = 1900-01-01               # optional: gives GROUP BY month or year its public groups
    upper = 2029-12-31

    [synthesis]                      # optional: constraints on every row, for `synthesize`
    impossible = [{age = {upper = 15}, married = true}]

    [synthesis.follows.region]       # looked up and not learned
    given = "city"
    values = {Delft = "south", Utrecht = "middle"}

    [public.regions]                 # optional: tables that anyone may read, for joins
    source = "regions.csv"           # .csv, .csv.gz or .parquet
    key = "city"                     # the column to join on; each of its values occurs once

    [public.regions.columns.city]
    type = "text"

    [public.regions.columns.region]
    type = "text"
    categories = ["north", "south"]

Several private tables of the same people have [tables.NAME] sections in place of [table] and [columns]:

    [tables.visits]                  # the keys of [table], except `name`
    source = "visits.csv"

    [tables.visits.columns.days]
    type = "integer"

    [tables.people]
    source = "people.csv"
    unit = "id"                      # the name of unit.column in this table, if different
    rows = 1                         # bounds for queries of this table alone; default: those of [unit],
    groups = 1                       # which apply to joins
"""

from sfumato.policy.declared import (
    ENGINES,
    FALSE_WORDS,
    NUMERIC,
    TRUE_WORDS,
    TYPES,
    Column,
    Key,
    Policy,
    PublicTable,
    Unit,
    left_out_on_purpose,
)
from sfumato.policy.file import declares_study, ledger_place, load_policy, policy_from_dict

__all__ = [
    "ENGINES",
    "FALSE_WORDS",
    "NUMERIC",
    "TRUE_WORDS",
    "TYPES",
    "Column",
    "Key",
    "Policy",
    "PublicTable",
    "Unit",
    "declares_study",
    "ledger_place",
    "left_out_on_purpose",
    "load_policy",
    "policy_from_dict",
]
