"""Bare loops: what the machine and the storage can do with nothing of Holdfast in between.

Written once and not tuned afterwards: they are the yardstick, not a competitor.
"""
