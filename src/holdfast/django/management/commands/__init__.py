"""One file per command, by its name."""
