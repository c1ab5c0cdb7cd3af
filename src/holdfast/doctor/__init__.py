"""The checks of `holdfast doctor` that need no engine: pure functions over settings, tasks, records and clock readings.

`examine.py` collects the values and calls them. An engine brings its own checks: `Engine.examine`.
"""
