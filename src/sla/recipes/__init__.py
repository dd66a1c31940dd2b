"""Training recipes as data (`recipes.yaml`): settings by name, at three scales."""

SCALES = ("smoke", "small", "paper")
