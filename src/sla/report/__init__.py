"""Every HTML page there is: self-contained, light and dark, readable at a phone's width."""
