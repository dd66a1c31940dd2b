"""Stand-ins for tables of libraries that the tests do not need: the few names that are used of each."""


class Frame:
    """As much of a pandas frame as is used: `columns`, `shape`, and columns by name."""

    def __init__(self, **columns):
        self.held, self.columns = columns, list(columns)
        self.shape = (len(next(iter(columns.values()))), len(columns))

    def __getitem__(self, name):
        return self.held[name]


class Image:
    """The feature of a Hugging Face column of images, known by the name of its class."""


class ClassLabel:
    """That of a column of class numbers."""

    def __init__(self, names):
        self.names = names


class HubDataset:
    """As much of a Hugging Face dataset as is used; rows are decoded when they are read."""

    def __init__(self, features, **columns):
        self.features, self.column_names, self.held = features, list(columns), columns

    def __len__(self):
        return len(next(iter(self.held.values())))

    def __getitem__(self, row):
        return {name: values[row] for name, values in self.held.items()}
