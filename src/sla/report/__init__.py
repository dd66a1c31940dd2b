"""HTML pages: self-contained, light and dark, readable from a phone's width up."""
