"""Data sets: found, verified by checksum, and handed over with the public facts declared about them.

    data = sfumato.datasets.load("mnist", "train")
    inputs, targets = data.tensors()

Image files are looked for in $SFUMATO_DATA, then the cache ($SFUMATO_CACHE, or the platform's cache folder),
then public sources.
"""

from sfumato.datasets.archive import Archive, ArchiveFile, LocalFile
from sfumato.datasets.dataset import Chosen, Dataset
from sfumato.datasets.drawings import NETS, TOGETHER, draw, prior_for
from sfumato.datasets.images import fetch, load, resize
from sfumato.datasets.own_images import read_images
from sfumato.datasets.parquet import parquet_dataset
from sfumato.datasets.pictures import Pictures, read_pictures
from sfumato.datasets.registry import DATASETS, DatasetSpec, public_name
from sfumato.datasets.tables import read_table, table_dataset

__all__ = [
    "DATASETS",
    "NETS",
    "TOGETHER",
    "Archive",
    "ArchiveFile",
    "Chosen",
    "Dataset",
    "DatasetSpec",
    "LocalFile",
    "Pictures",
    "draw",
    "fetch",
    "load",
    "parquet_dataset",
    "prior_for",
    "public_name",
    "read_images",
    "read_pictures",
    "read_table",
    "resize",
    "table_dataset",
]
