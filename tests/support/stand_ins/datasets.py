"""The few names of Hugging Face's library that an example uses, for where it is not installed."""

from fake_tables import ClassLabel, HubDataset, Image

__all__ = ["ClassLabel", "Dataset", "Features", "Image"]

Features = dict


class Dataset(HubDataset):
    @classmethod
    def from_dict(cls, columns, features):
        return cls(features, **columns)
