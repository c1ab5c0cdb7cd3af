"""Reaching the store: what an App shares, opens per process, merges, waits for, and explains."""
