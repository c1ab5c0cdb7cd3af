"""Bare loops: what the machine and the storage can do without Holdfast.

They were written once and are not tuned: they measure the machine, they do not compete.
"""
