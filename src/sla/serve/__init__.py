"""A run behind HTTP: a page for people and JSON for programs."""
