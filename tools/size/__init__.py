"""`make size`: how large the package is, and how many functions its main paths pass through."""
