"""What Holdfast tells about itself while it works: typed events, the bus that carries them, and log lines."""
